//go:build cuda && cgo && linux && amd64

package library_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/avgpipe/avgpipe/stage/device/cuda/library"
)

// What cannot be opened is refused by its name, before the loader would hang at it, and after whoever listens was told.
func TestWhatIsNoLibraryIsRefusedByName(t *testing.T) {
	dir := t.TempDir()
	pipe, text := filepath.Join(dir, "pipe.so"), filepath.Join(dir, "text.so")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(text, []byte("no library"), 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		pipe:                         pipe + " is a named pipe, expected a regular file",
		dir:                          dir + " is a directory, expected a regular file",
		"/dev/null":                  "/dev/null is a device, expected a regular file",
		text:                         text + ": the loader refuses it: file too short",
		filepath.Join(dir, "nil.so"): filepath.Join(dir, "nil.so") + ": not found",
		"libnone.so.7":               "libnone.so.7: not found by the loader",
	} {
		told := ""
		_, err := library.Search{Opening: func(path string) { told = path }}.Open(path)
		if err == nil || err.Error() != want || told != path || errors.Is(err, library.ErrAbsent) != strings.Contains(want, "not found") {
			t.Errorf("error is %v, want %q; told of %q", err, want, told)
		}
	}
}

// A library that lies in a directory that is named counts, also where it cannot be used; the loader's own places come after.
func TestDirectoriesThatAreNamedComeFirst(t *testing.T) {
	dir := t.TempDir()
	take := func(*library.Library) error { return nil }
	names := []string{"libc.so.6"}
	found, err := library.Search{Directories: []string{dir}}.First(names, take)
	if err != nil || filepath.Base(found.Path) != "libc.so.6" || !filepath.IsAbs(found.Path) {
		t.Errorf("found %+v, %v", found, err)
	}
	if err := os.WriteFile(filepath.Join(dir, "libc.so.6"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := (library.Search{Directories: []string{dir}}).First(names, take); err == nil || !strings.HasPrefix(err.Error(), dir) {
		t.Errorf("an empty file: %v", err)
	}
	gone := filepath.Join(dir, "gone")
	if _, err := (library.Search{Directories: []string{gone}}).First(names, take); err == nil || err.Error() != gone+" is no directory, expected one with libc.so.6" {
		t.Errorf("a directory that is not there: %v", err)
	}
}
