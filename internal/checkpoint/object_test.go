package checkpoint_test

import (
	"errors"
	"io/fs"
	"os"
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/internal/checkpoint"
)

// TestObjectIsReadAsItWasWritten, or an error names its file.
func TestObjectIsReadAsItWasWritten(t *testing.T) {
	dir := t.TempDir()
	digest, err := checkpoint.WriteObject(dir, []byte("abc"), 0o640)
	if err != nil || digest != "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad" {
		t.Fatalf("digest %q: %v", digest, err)
	}
	if data, err := checkpoint.ReadObject(dir, digest); err != nil || string(data) != "abc" {
		t.Errorf("read %q: %v", data, err)
	}
	path := checkpoint.ObjectPath(dir, digest)
	if err := os.WriteFile(path, []byte("abd"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := checkpoint.ReadObject(dir, digest); err == nil || !strings.Contains(err.Error(), path+" is damaged") {
		t.Errorf("damaged: %v", err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if _, err := checkpoint.ReadObject(dir, digest); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), path) {
		t.Errorf("lost: %v", err)
	}
}
