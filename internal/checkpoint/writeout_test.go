package checkpoint_test

import (
	"bytes"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/avgpipe/avgpipe/internal/checkpoint"
)

// TestALargeFileIsWhole that is given to the disk while it is written, in pieces that are not pages.
func TestALargeFileIsWhole(t *testing.T) {
	dir := t.TempDir()
	random := rand.NewChaCha8([32]byte{1})
	data := make([]byte, 7<<20+123)
	_, _ = random.Read(data)
	f, err := checkpoint.Create(dir, 0o640, int64(len(data)))
	if err != nil {
		t.Fatal(err)
	}
	for rest := data; len(rest) > 0; {
		n := min(len(rest), 1+int(random.Uint64()%(3<<20)))
		if _, err := f.Write(rest[:n]); err != nil {
			t.Fatal(err)
		}
		rest = rest[n:]
	}
	copy(data[100:], "written last")
	if _, err := f.WriteAt(data[100:112], 100); err != nil {
		t.Fatal(err)
	}
	if err := f.Commit("large"); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(filepath.Join(dir, "large")); err != nil || !bytes.Equal(got, data) {
		t.Errorf("%v: %d bytes, expected the %d that were written", err, len(got), len(data))
	}
}
