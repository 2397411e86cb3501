package checkpoint_test

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/internal/checkpoint"
)

type thing struct {
	Name string `json:"name"`
}

// TestRecordIsWholeOrRefused: with any byte changed or cut off, reading names the file and leaves the value alone.
func TestRecordIsWholeOrRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "thing")
	if err := checkpoint.WriteRecord(path, "thing", 1, thing{"a"}, 0o640); err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	check := func(what string, text []byte) {
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		got := thing{"untouched"}
		var damaged *checkpoint.RecordError
		err := checkpoint.ReadRecord(path, "thing", 1, &got)
		if !errors.As(err, &damaged) || !strings.Contains(err.Error(), path) || got.Name != "untouched" {
			t.Errorf("%s: %v, value %+v", what, err, got)
		}
	}
	for i := range whole {
		check("cut", whole[:i])
		flipped := bytes.Clone(whole)
		flipped[i] ^= 1
		check("flipped "+string(flipped), flipped)
	}
	if err := os.WriteFile(path, whole, 0o600); err != nil {
		t.Fatal(err)
	}
	var got thing
	if err := checkpoint.ReadRecord(path, "thing", 1, &got); err != nil || got.Name != "a" {
		t.Errorf("whole: %+v, %v", got, err)
	}
	if err := checkpoint.ReadRecord(path, "other", 1, &got); err == nil {
		t.Error("a record of another kind was read")
	}
	if err := checkpoint.ReadRecord(path+"x", "thing", 1, &got); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("absent: %v", err)
	}
}

// TestNewerRecordIsRefused with the versions in words.
func TestNewerRecordIsRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "thing")
	if err := checkpoint.WriteRecord(path, "thing", 2, thing{"a"}, 0o640); err != nil {
		t.Fatal(err)
	}
	var got thing
	if err := checkpoint.ReadRecord(path, "thing", 1, &got); err == nil || !strings.Contains(err.Error(), "version 2, this program reads 1 to 1") {
		t.Errorf("error %v", err)
	}
}
