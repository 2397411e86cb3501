package checkpoint

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// TestWhatIsNotWrittenOut: a file system without it is let be, and another error is one of writing.
func TestWhatIsNotWrittenOut(t *testing.T) {
	file, err := os.Create(filepath.Join(t.TempDir(), "file"))
	if err != nil {
		t.Fatal(err)
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	var out writeOut
	if err := out.wrote(file, writeOutWindow-1); err != nil {
		t.Errorf("less than a window: %v", err)
	}
	if err := out.wrote(file, writeOutWindow); err == nil || out.off {
		t.Errorf("a file that was closed: %v, off %v", err, out.off)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = errors.Join(r.Close(), w.Close()) }()
	out = writeOut{}
	if err := out.wrote(w, writeOutWindow); err != nil || !out.off {
		t.Errorf("a pipe: %v, off %v", err, out.off)
	}
}
