package tokenfile

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/avgpipe/avgpipe/internal/envtest"
)

// written is a token file of a few MiB, mapped.
func written(t *testing.T) (string, *File) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "f.tokens")
	w, err := Create(path, Header{Width: 2, Vocabulary: 1000, End: 3})
	if err != nil {
		t.Fatal(err)
	}
	ids := make([]int32, 3<<18)
	for i := range ids {
		ids[i] = int32(i % 999)
	}
	if err := errors.Join(w.Add(ids, true), w.Add(ids, true)); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Close(); err != nil {
		t.Fatal(err)
	}
	f, err := Open(nil, path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
	return path, f
}

// overwrite changes bytes of a file in place, and its time of change.
func overwrite(t *testing.T, path string, at int64, text string) {
	t.Helper()
	file, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := file.WriteAt([]byte(text), at); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(file.Close(), os.Chtimes(path, time.Time{}, time.Unix(1e9, at))); err != nil {
		t.Fatal(err)
	}
}

// TestOverwritingInPlaceIsNoticed; touching a file is no change.
func TestOverwritingInPlaceIsNoticed(t *testing.T) {
	path, f := written(t)
	if err := f.Verify(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := envtest.Allocations(100, func() { _ = f.Unchanged() }); n > 0 {
		t.Errorf("looking at it allocates %v times", n)
	}
	overwrite(t, path, 0, "AVGTOKEN") // what was there
	if err := f.Unchanged(); err != nil {
		t.Errorf("touched: %v", err)
	}
	overwrite(t, path, 2<<20+5, "x")
	if err := f.Unchanged(); err == nil || !strings.Contains(err.Error(), path+" was overwritten while it was read: its tokens have the digest ") {
		t.Errorf("overwritten: %v", err)
	}
	if err := f.Unchanged(); err == nil {
		t.Error("it is told once only")
	}
	if err := os.Truncate(path, 100); err != nil {
		t.Fatal(err)
	}
	if err := f.Unchanged(); err == nil || !strings.Contains(err.Error(), "and has 100; restore it") {
		t.Errorf("truncated: %v", err)
	}
}

// TestTokensHaveToHaveTheDigestOfTheHeader: a file that was overwritten before it was opened is refused.
func TestTokensHaveToHaveTheDigestOfTheHeader(t *testing.T) {
	path, f := written(t)
	overwrite(t, path, headerSize+7, "x")
	if err := f.Verify(t.Context()); err == nil || !strings.HasPrefix(err.Error(), path+": its tokens have the digest ") {
		t.Errorf("error %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, f = written(t)
	if err := f.Verify(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
}
