package modeldir

import (
	"archive/tar"
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

// pack makes an archive of headers, each with the same content when it is a file.
func pack(t *testing.T, headers ...tar.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range headers {
		content := ""
		if h.Typeflag == tar.TypeReg {
			content = "content"
		}
		h.Size, h.Mode = int64(len(content)), 0o644
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(content)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestUnpackRefusesWhatCouldWriteElsewhere(t *testing.T) {
	file := func(name string) tar.Header { return tar.Header{Typeflag: tar.TypeReg, Name: name} }
	for name, archive := range map[string][]byte{
		"parent":    pack(t, file("../evil")),
		"absolute":  pack(t, file("/tmp/evil")),
		"below":     pack(t, file("dir/evil")),
		"dots":      pack(t, file("..")),
		"backslash": pack(t, file(`..\evil`)),
		"directory": pack(t, tar.Header{Typeflag: tar.TypeDir, Name: "dir"}),
		"symlink":   pack(t, tar.Header{Typeflag: tar.TypeSymlink, Name: "link", Linkname: "/etc"}),
		"hard link": pack(t, tar.Header{Typeflag: tar.TypeLink, Name: "link", Linkname: "/etc/passwd"}),
		"device":    pack(t, tar.Header{Typeflag: tar.TypeChar, Name: "null"}),
		"twice":     pack(t, file("a"), file("a")),
		"empty":     pack(t),
		"cut":       pack(t, file("a"))[:515],
	} {
		t.Run(name, func(t *testing.T) {
			outer := t.TempDir()
			dir := filepath.Join(outer, "in")
			if err := os.Mkdir(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			if err := Unpack(bytes.NewReader(archive), dir); err == nil {
				t.Error("unpacked without an error")
			}
			if entries, err := os.ReadDir(outer); err != nil || len(entries) != 1 {
				t.Errorf("files beside the directory: %v, %v", entries, err)
			}
		})
	}
	dir := t.TempDir()
	if err := Unpack(bytes.NewReader(pack(t, file("config.json"), file("model.safetensors"))), dir); err != nil {
		t.Error(err)
	}
}
