package main

import (
	"archive/tar"
	"bytes"
	"os"
	"path/filepath"
	"strings"
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

func TestUntarRefusesWhatCouldWriteElsewhere(t *testing.T) {
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
			if err := untar(bytes.NewReader(archive), dir); err == nil {
				t.Error("unpacked without an error")
			}
			if entries, err := os.ReadDir(outer); err != nil || len(entries) != 1 {
				t.Errorf("files beside the directory: %v, %v", entries, err)
			}
		})
	}
	dir := t.TempDir()
	if err := untar(bytes.NewReader(pack(t, file("config.json"), file("model.safetensors"))), dir); err != nil {
		t.Error(err)
	}
}

func TestTerminalsGetNothingToObey(t *testing.T) {
	var b strings.Builder
	w := &plainWriter{&b}
	if _, err := w.Write([]byte("a\x1b[31mb\tc\n\x07\x7fé\u009b\x9b")); err != nil {
		t.Fatal(err)
	}
	if got, want := b.String(), `a\x1b[31mb`+"\tc\n"+`\x07\x7fé\x9b\x9b`; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got := renderLog([]byte(`{"level":"info","time":"2026-01-02T03:04:05.678Z","msg":"x\u001b[2J","k":1,"accuracy":null}`)); strings.Contains(got, "\x1b") || strings.Contains(got, "nil") || !strings.Contains(got, "k=1") {
		t.Errorf("a log line renders as %q", got)
	}
}
