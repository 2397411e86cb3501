package main

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/avgpipe/avgpipe/internal/envtest"
)

// What was on a disk that two faults made read-only is there when they are undone.
func TestReadOnlyTwice(t *testing.T) {
	if os.Getuid() != 0 {
		envtest.Missing(t, "mounts need root")
	}
	runtime.LockOSThread() // for good: the thread, which sees mounts of its own, ends with the test
	if err := errors.Join(unix.Unshare(unix.CLONE_NEWNS), unix.Mount("", "/", "", unix.MS_PRIVATE|unix.MS_REC, ""), unix.Mount("", "/", "", unix.MS_SHARED|unix.MS_REC, "")); err != nil {
		t.Fatal(err)
	}
	h := &host{base: t.TempDir(), testbed: &testbed{mounts: true}}
	if err := mountSmall(h.base, stateBytes); err != nil {
		t.Fatal(err)
	}
	defer h.unmountAll()
	path := filepath.Join(h.base, "file")
	if err := os.WriteFile(path, []byte("1"), 0o600); err != nil {
		t.Fatal(err)
	}
	var undo []func() error
	for range 2 {
		u, err := overmountReadOnly(t.Context(), h)
		if err != nil {
			t.Fatal(err)
		}
		if u != nil {
			undo = append(undo, u)
		}
		if err := os.WriteFile(path, []byte("2"), 0o600); !errors.Is(err, unix.EROFS) {
			t.Errorf("write to a read-only disk: %v", err)
		}
	}
	for len(undo) > 0 {
		if err := undo[len(undo)-1](); err != nil {
			t.Fatal(err)
		}
		undo = undo[:len(undo)-1]
	}
	if text, err := os.ReadFile(path); err != nil || string(text) != "1" {
		t.Errorf("afterwards the file has %q: %v", text, err)
	}
	if err := os.WriteFile(path, []byte("3"), 0o600); err != nil {
		t.Error(err)
	}
}
