package tokenfile

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// writeFile writes documents and returns the file's path.
func writeFile(t testing.TB, h Header, documents ...[]int32) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "f.tokens")
	w, err := Create(path, h)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range documents {
		if err := w.Add(d, true); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestWhatIsWrittenIsMapped, for every width, over several buffers, in parts.
func TestWhatIsWrittenIsMapped(t *testing.T) {
	for width, vocabulary := range map[int]uint32{1: 256, 2: 65536, 4: 1 << 20} {
		path := filepath.Join(t.TempDir(), "f.tokens")
		w, err := Create(path, Header{Width: uint32(width), Vocabulary: vocabulary, End: 3, Tokenizer: [32]byte{7}})
		if err != nil {
			t.Fatal(err)
		}
		const documents, length = 7, 9000
		id := func(i int) int32 { return int32(uint32(i) * 2654435761 % vocabulary) }
		for d := range documents {
			for i := range length {
				if err := w.Add([]int32{id(d*length + i)}, i == length-1); err != nil {
					t.Fatal(err)
				}
			}
		}
		h, err := w.Close()
		if err != nil {
			t.Fatal(err)
		}
		f, err := Open(nil, path)
		if err != nil {
			t.Fatal(err)
		}
		if f.Header != h || h.Tokens != documents*(length+1) || h.Documents != documents || h.Tokenizer[0] != 7 || sha256.Sum256(f.Tokens) != h.Digest {
			t.Errorf("width %d: %+v, closed with %+v", width, f.Header, h)
		}
		for d := range documents {
			for i := range length + 1 {
				var raw [4]byte
				copy(raw[:], f.Tokens[(d*(length+1)+i)*width:][:width])
				want := int32(3)
				if i < length {
					want = id(d*length + i)
				}
				if got := int32(binary.LittleEndian.Uint32(raw[:])); got != want {
					t.Fatalf("width %d: token %d of document %d is %d, want %d", width, i, d, got, want)
				}
			}
		}
		if left, _ := filepath.Glob(filepath.Dir(path) + "/.tmp-*"); len(left) > 0 {
			t.Error("left behind:", left)
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestTheWriterRefusesATokenBeyondTheVocabulary(t *testing.T) {
	for _, id := range []int32{-1, 10, 300} {
		path := filepath.Join(t.TempDir(), "f")
		w, err := Create(path, Header{Width: 1, Vocabulary: 10})
		if err != nil {
			t.Fatal(err)
		}
		if err := w.Add([]int32{id}, false); err == nil || !strings.Contains(err.Error(), "beyond the vocabulary of 10") {
			t.Errorf("%d: error %v", id, err)
		}
		if err := w.Abort(); err != nil {
			t.Error(err)
		}
		if left, _ := os.ReadDir(filepath.Dir(path)); len(left) > 0 {
			t.Error("left behind:", left)
		}
	}
}

// TestAMissingDirectoryIsNamed, and no temporary file in it.
func TestAMissingDirectoryIsNamed(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "nodir")
	_, err := Create(filepath.Join(dir, "x"), Header{Width: 1, Vocabulary: 10})
	if !errors.Is(err, fs.ErrNotExist) || !strings.HasSuffix(err.Error(), "create a file in "+dir+": no such file or directory") {
		t.Errorf("error %v", err)
	}
}

// sealed puts the checksum right, for damage that it does not catch.
func sealed(b []byte) []byte {
	binary.LittleEndian.PutUint32(b[headerSize-4:], crc32.Checksum(b[:headerSize-4], castagnoli))
	return b
}

func TestOpenRefuses(t *testing.T) {
	good, err := os.ReadFile(writeFile(t, Header{Width: 2, Vocabulary: 1000, End: 1}, []int32{5, 6, 7}))
	if err != nil {
		t.Fatal(err)
	}
	edit := func(at int, value ...byte) []byte {
		out := append([]byte(nil), good...)
		copy(out[at:], value)
		return out
	}
	for name, c := range map[string]struct {
		content []byte
		want    string
	}{
		"empty":      {nil, "not a token file"},
		"text":       {[]byte(strings.Repeat("text", 50)), "not a token file"},
		"version":    {edit(8, 2), "version 2; this program reads version 1"},
		"damaged":    {edit(20, 9), "header is damaged"},
		"width":      {sealed(edit(12, 3)), "3 bytes; they have 1, 2 or 4"},
		"vocabulary": {sealed(edit(32, 1, 0, 1)), "a vocabulary of 65537"},
		"end":        {sealed(edit(36, 0xe8, 3)), "the end token 1000"},
		"truncated":  {good[:len(good)-1], "has 135 bytes; its header says 4 tokens of 2 bytes after 128"},
		"longer":     {append(edit(0), 0, 0), "has 138 bytes"},
		"overflow":   {sealed(edit(16, 4, 0, 0, 0, 0, 0, 0, 0x80)), "its header says"},
	} {
		path := filepath.Join(t.TempDir(), "f")
		if err := os.WriteFile(path, c.content, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(nil, path); err == nil || !strings.HasPrefix(err.Error(), path+": ") || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want ...%s...", name, err, c.want)
		}
	}
}

// FuzzDecode: a header is what encode writes, or refused; and one that is accepted fits its file.
func FuzzDecode(f *testing.F) {
	good, err := os.ReadFile(writeFile(f, Header{Width: 2, Vocabulary: 1000, End: 1}, []int32{5}))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good, int64(len(good)))
	f.Add(good[:50], int64(50))
	f.Fuzz(func(t *testing.T, content []byte, size int64) {
		if len(content) >= headerSize {
			sealed(content)
		}
		h, err := decode(content, size)
		if err != nil {
			return
		}
		if h.Tokens*uint64(h.Width)+headerSize != uint64(size) || h.End >= h.Vocabulary {
			t.Fatalf("%+v of a file of %d bytes", h, size)
		}
	})
}
