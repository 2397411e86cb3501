package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

func fillDisk(_ context.Context, w *testbed) (func() error, error) {
	path := filepath.Join(w.base, "filler")
	undo := func() error { return os.Remove(path) }
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) || errors.Is(err, unix.EROFS) {
		return nil, nil // it is full, or nothing can be written anyhow
	}
	if err != nil {
		return nil, err
	}
	zeros := make([]byte, 4096)
	for range stateBytes/len(zeros) + 1 {
		if _, err = f.Write(zeros); err != nil {
			break
		}
	}
	if !errors.Is(err, unix.ENOSPC) {
		return undo, errors.Join(fmt.Errorf("fill the disk: %w, expected %w", err, unix.ENOSPC), f.Close())
	}
	return undo, f.Close()
}

func fillDiskAtStart(ctx context.Context, w *testbed) (func() error, error) {
	defer w.daemon.release()
	if err := w.halt(ctx); err != nil {
		return nil, err
	}
	return fillDisk(ctx, w)
}

// overmountReadOnly mounts the state directory over itself, read-only: what is open stays writable, as after an error of a disk that
// not every file has met.
func overmountReadOnly(_ context.Context, w *testbed) (func() error, error) {
	if err := unix.Mount(w.base, w.base, "", unix.MS_BIND, ""); err != nil {
		return nil, fmt.Errorf("mount %s over itself: %w", w.base, err)
	}
	return unmount(w.base), unix.Mount("", w.base, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, "")
}

// unmount takes the topmost mount away, whoever uses it.
func unmount(at string) func() error {
	return func() error {
		if err := unix.Unmount(at, unix.MNT_DETACH); err != nil {
			return fmt.Errorf("unmount %s: %w", at, err)
		}
		return nil
	}
}

func remountReadOnly(ctx context.Context, w *testbed) (func() error, error) {
	defer w.daemon.release()
	if err := w.halt(ctx); err != nil {
		return nil, err
	}
	remount := func(flags uintptr) (err error) {
		waited := poll(ctx, stopBound, "the last thread of a killed worker", func() bool {
			err = unix.Mount("", w.base, "", unix.MS_REMOUNT|flags, "")
			return !errors.Is(err, unix.EBUSY)
		})
		if err != nil {
			return errors.Join(fmt.Errorf("mount %s again: %w", w.base, err), waited)
		}
		return nil
	}
	return func() error { return remount(0) }, remount(unix.MS_RDONLY)
}
