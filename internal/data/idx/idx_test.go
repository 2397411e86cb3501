package idx

import (
	"bytes"
	"compress/gzip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func compressed(t testing.TB, raw []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	if _, err := z.Write(raw); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

var images = append([]byte{0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 3}, 1, 2, 3, 4, 5, 6)

func TestRead(t *testing.T) {
	for name, content := range map[string][]byte{"plain": images, "compressed": compressed(t, images)} {
		path := filepath.Join(t.TempDir(), "f")
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		d, err := Read(nil, path, 6)
		if err != nil || !slices.Equal(d.Sizes, []int{2, 1, 3}) || !slices.Equal(d.Bytes, []byte{1, 2, 3, 4, 5, 6}) {
			t.Errorf("%s: %v %v", name, d, err)
		}
		if _, err := Read(nil, path, 5); err == nil || !strings.HasPrefix(err.Error(), path+": [2 1 3] or more bytes") {
			t.Errorf("%s: error %v", name, err)
		}
	}
}

func TestReadRefuses(t *testing.T) {
	edit := func(at int, b byte) []byte {
		out := bytes.Clone(images)
		out[at] = b
		return out
	}
	wrong := compressed(t, images)
	wrong[len(wrong)-5] ^= 1 // of the checksum
	for name, c := range map[string]struct {
		content []byte
		want    string
	}{
		"empty":        {nil, "ends within its first 4 bytes"},
		"text":         {[]byte("text and more"), "it starts with 74 65"},
		"floats":       {edit(2, 0x0d), "type 0x0d"},
		"no dimension": {edit(3, 0), "0 dimensions"},
		"many":         {edit(3, 9), "9 dimensions"},
		"no sizes":     {images[:10], "ends within the sizes"},
		"size 0":       {edit(11, 0), "dimension 1 is empty"},
		"huge":         {edit(4, 0xff), "above the 1000000"},
		"truncated":    {images[:len(images)-1], "[2 1 3] needs 6 bytes, 5 are there"},
		"longer":       {append(bytes.Clone(images), 7), "longer than the 6 bytes"},
		"bad gzip":     {[]byte{0x1f, 0x8b, 1}, "gzip"},
		"cut gzip":     {wrong[:len(wrong)-9], "truncated"},
		"checksum":     {wrong, "checksum"},
	} {
		_, err := read(bytes.NewReader(c.content), 1_000_000)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want ...%s...", name, err, c.want)
		}
	}
}

// FuzzRead: whatever a file holds, what is read is what its header says, within the limit.
func FuzzRead(f *testing.F) {
	f.Add(images)
	f.Add(compressed(f, images))
	f.Add(images[:9])
	f.Fuzz(func(t *testing.T, content []byte) {
		const limit = 1 << 16
		d, err := read(bytes.NewReader(content), limit)
		if err != nil {
			return
		}
		n := 1
		for _, size := range d.Sizes {
			n *= size
		}
		if n != len(d.Bytes) || n > limit {
			t.Fatalf("%v with %d bytes", d.Sizes, len(d.Bytes))
		}
	})
}
