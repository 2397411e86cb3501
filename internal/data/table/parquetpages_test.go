package table

import (
	"encoding/binary"
	"errors"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/encoding/thrift"
	"github.com/parquet-go/parquet-go/format"
)

// forge writes a Parquet file of one page, whose header, and whose metadata, are changed.
func forge(t *testing.T, page func(*format.PageHeader), meta func(*format.FileMetaData)) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "f.parquet")
	type row struct {
		Text string `parquet:"text,plain"`
	}
	if err := parquet.WriteFile(path, []row{{"one"}, {"two"}}); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	footer := len(text) - 8 - int(binary.LittleEndian.Uint32(text[len(text)-8:]))
	var m format.FileMetaData
	protocol := new(thrift.CompactProtocol)
	if err := thrift.Unmarshal(protocol, text[footer:len(text)-8], &m); err != nil {
		t.Fatal(err)
	}
	chunk := &m.RowGroups[0].Columns[0].MetaData
	at, end := chunk.DataPageOffset, chunk.DataPageOffset+chunk.TotalCompressedSize
	length, err := thriftStructure(text[at:end])
	if err != nil {
		t.Fatal(err)
	}
	var h format.PageHeader
	if err := thrift.Unmarshal(protocol, text[at:at+int64(length)], &h); err != nil {
		t.Fatal(err)
	}
	page(&h)
	changed, err := thrift.Marshal(protocol, &h)
	if err != nil {
		t.Fatal(err)
	}
	out := append(append([]byte{}, text[:at]...), changed...)
	out = append(out, text[at+int64(length):end]...)
	chunk.TotalCompressedSize = int64(len(out)) - at
	meta(&m)
	last, err := thrift.Marshal(protocol, &m)
	if err != nil {
		t.Fatal(err)
	}
	out = binary.LittleEndian.AppendUint32(append(out, last...), uint32(len(last)))
	if err := os.WriteFile(path, append(out, "PAR1"...), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestParquetAllocatesByWhatIsThere, not by what headers claim: files that claim gigabytes are refused in words.
func TestParquetAllocatesByWhatIsThere(t *testing.T) {
	page, meta := func(*format.PageHeader) {}, func(*format.FileMetaData) {}
	read := func(path string) error {
		return Read(nil, path, Config{Format: Parquet, Columns: []string{"text"}}, func(Row) error { return nil })
	}
	if err := read(forge(t, page, meta)); err != nil {
		t.Fatalf("an honest file: %v", err)
	}
	short := func(path string, size int64) string {
		if err := os.Truncate(path, size); err != nil {
			t.Fatal(err)
		}
		return path
	}
	list := forge(t, page, meta)
	text, err := os.ReadFile(list)
	if err != nil {
		t.Fatal(err)
	}
	endless := append([]byte("PAR1\x15\x02\x19\xfc\xff\xff\xff\xff\x07"), "\x0b\x00\x00\x00PAR1"...) // a schema of 2^31-1 elements
	binary.LittleEndian.PutUint32(endless[len(endless)-8:], uint32(len(endless)-12))
	claims := append([]byte{}, text...)
	binary.LittleEndian.PutUint32(claims[len(claims)-8:], math.MaxUint32)
	file := func(content []byte) string {
		path := filepath.Join(t.TempDir(), "f.parquet")
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for name, c := range map[string]struct{ path, want string }{
		"decompressed": {forge(t, func(h *format.PageHeader) { h.UncompressedPageSize = math.MaxInt32 }, meta), "claims 2147483647 bytes decompressed"},
		"compressed":   {forge(t, func(h *format.PageHeader) { h.CompressedPageSize = math.MaxInt32 }, meta), "claims 2147483647 bytes, its column has"},
		"negative":     {forge(t, func(h *format.PageHeader) { h.CompressedPageSize = -1 }, meta), "claims -1 bytes"},
		"values":       {forge(t, func(h *format.PageHeader) { values(h, math.MaxInt32) }, meta), "claims 2147483647 values"},
		"column": {forge(t, page, func(m *format.FileMetaData) {
			m.RowGroups[0].Columns[0].MetaData.TotalCompressedSize = 1 << 40
		}), "a column claims 1099511627776 bytes"},
		"metadata":  {file(claims), "metadata claim 4294967295 bytes"},
		"a list":    {file(endless), "a list claims 2147483647 elements"},
		"truncated": {short(forge(t, page, meta), 30), "not with PAR1"},
		"nothing":   {short(forge(t, page, meta), 3), "it has 3 bytes"},
	} {
		if err := read(c.path); err == nil || !strings.Contains(err.Error(), c.want) || !strings.HasPrefix(err.Error(), c.path) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; n > 64<<20 {
		t.Errorf("%d bytes were allocated for files of some hundred", n)
	}
}

// values sets how many values a page claims.
func values(h *format.PageHeader, n int32) {
	h.DataPageHeader.V.NumValues, h.DataPageHeaderV2.V.NumValues = n, n
}

// TestDeepMetadataAreRefused before they exhaust the stack: structures in structures, in lists, and lists in lists.
func TestDeepMetadataAreRefused(t *testing.T) {
	for name, level := range map[string]string{"structures": "\x1c", "structures in lists": "\x19\x1c", "lists": "\x19\x19", "maps": "\x1b\x01\xbb"} {
		if n, err := thriftStructure([]byte(strings.Repeat(level, 8<<20/len(level)))); !errors.Is(err, errThrift) {
			t.Errorf("%s: %d bytes, %v", name, n, err)
		}
	}
}
