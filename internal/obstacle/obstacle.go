// Package obstacle tells failures that pass by themselves from all others: a full disk, a file system that is read-only or not
// mounted, a device that does not answer, a process without free file descriptors. Whoever meets one waits until Passed and
// tries again:
//
//	if o := obstacle.Of(err); o != nil { // say o.String(), then ask o.Passed() from time to time
//
// An obstacle is a value that can be sent to another process on the same host, which can ask as well.
package obstacle

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/avgpipe/avgpipe/internal/checkpoint"
	"github.com/avgpipe/avgpipe/internal/words"
)

// Kind is what is in the way.
type Kind string

// The kinds of obstacle.
const (
	Space    Kind = "space"     // a disk or a quota is full
	Missing  Kind = "missing"   // a file or directory that was there is not: a mount may be late
	Empty    Kind = "empty"     // a directory that held files holds none: a mount may be late
	Device   Kind = "device"    // reads or writes fail: EIO, a stale mount
	ReadOnly Kind = "read_only" // the file system takes no writes
	Files    Kind = "files"     // the process or the host has no free file descriptors
	Busy     Kind = "busy"      // another process holds the lock Path
	GPU      Kind = "gpu"       // GPUs are sick or gone; who places the job knows whether there are others
	Node     Kind = "node"      // a node cannot be reached, or none has room; who places the job knows whether there are others
	Damaged  Kind = "damaged"   // files of a job; a person decides: it passes where Path has Bytes again, and else not by itself
)

// Obstacle is a failure that another try may not meet.
type Obstacle struct {
	Kind  Kind   `json:"kind"`
	Path  string `json:"path,omitempty"`  // the file or directory; empty: unknown
	Bytes int64  `json:"bytes,omitempty"` // of Space: needed, as far as known; of Damaged: the file's length
	Text  string `json:"text"`            // the whole error
}

var kinds = map[syscall.Errno]Kind{
	syscall.ENOSPC: Space, syscall.EDQUOT: Space,
	syscall.ENOENT: Missing, syscall.ENOTDIR: Missing, syscall.ENODATA: Empty,
	syscall.EIO: Device, syscall.ESTALE: Device, syscall.ENOTCONN: Device, syscall.ENXIO: Device, syscall.ENODEV: Device,
	syscall.EROFS:  ReadOnly,
	syscall.EMFILE: Files, syscall.ENFILE: Files,
}

// Error is an error that is an obstacle by itself, beside those of the system.
type Error struct {
	Obstacle

	Err error
}

func (e *Error) Error() string { return e.Err.Error() }

// Unwrap gives the cause.
func (e *Error) Unwrap() error { return e.Err }

// Of returns the obstacle that an error is about, or nil.
func Of(err error) *Obstacle {
	if err == nil {
		return nil
	}
	if own, ok := errors.AsType[*Error](err); ok {
		o := own.Obstacle
		o.Text = err.Error()
		return &o
	}
	if full, ok := errors.AsType[*checkpoint.SpaceError](err); ok {
		return &Obstacle{Kind: Space, Path: full.Dir, Bytes: full.Needed, Text: err.Error()}
	}
	errno, ok := errors.AsType[syscall.Errno](err)
	if !ok {
		return nil
	}
	kind, ok := kinds[errno]
	if !ok {
		return nil
	}
	o := &Obstacle{Kind: kind, Text: err.Error()}
	if at, ok := errors.AsType[*fs.PathError](err); ok {
		o.Path = at.Path
		if dir, name := filepath.Split(at.Path); strings.HasPrefix(name, checkpoint.TempPrefix) { // it was to be made there
			o.Path = filepath.Clean(dir)
		}
	}
	return o
}

// How often it is asked whether an obstacle has passed. The longest pause is what a job may lose after it has.
const (
	firstPause   = 500 * time.Millisecond
	longestPause = 10 * time.Second
)

// Pause is how long to wait after so many tries before the next.
func Pause(tries int) time.Duration {
	return min(firstPause<<min(tries, 10), longestPause)
}

// String says what is in the way: "no space on /var/lib/avgpipe, 1.2 GB needed".
func (o *Obstacle) String() string {
	path := o.Path
	if path == "" {
		path = "an unknown path"
	}
	switch o.Kind {
	case Space:
		if o.Bytes > 0 {
			return fmt.Sprintf("no space on %s, %s needed", path, words.Bytes(o.Bytes))
		}
		return "no space on " + path
	case Missing:
		return path + " is missing"
	case Empty:
		return path + " is a directory without files"
	case Device:
		return path + " cannot be read or written: " + o.Text
	case ReadOnly:
		return path + " is on a read-only file system"
	case Files:
		return "no file descriptor is free"
	case Busy, GPU, Node, Damaged:
	}
	return o.Text
}

// Passed reports whether it is worth to try again; the error says what is still in the way. It reads and writes no data of
// anybody's. On a file system that hangs it may not return.
func (o *Obstacle) Passed() error {
	switch o.Kind {
	case Space:
		return o.spacePassed()
	case Missing, Device:
		return readable(o.Path)
	case Empty:
		entries, err := os.ReadDir(o.Path)
		if err == nil && len(entries) == 0 {
			err = errors.New(o.String())
		}
		return err
	case ReadOnly:
		return unix.Access(existing(o.Path), unix.W_OK)
	case Files:
		return readable(os.DevNull)
	case Busy:
		return lockable(o.Path)
	case GPU, Node:
		return nil
	case Damaged:
		if info, err := os.Stat(o.Path); err == nil && info.Size() == o.Bytes {
			return nil
		}
	}
	return errors.New(o.String())
}

func (o *Obstacle) spacePassed() error {
	if o.Path == "" {
		return nil
	}
	free, err := checkpoint.Available(existing(o.Path))
	if err != nil {
		return err
	}
	if free <= 0 || free < o.Bytes {
		return fmt.Errorf("%s, %s free", o, words.Bytes(free))
	}
	return nil
}

// existing is the path, or the nearest directory above it that is there: what is to be written may have no directory yet.
func existing(path string) string {
	for path != "/" && path != "." {
		if _, err := os.Stat(path); err == nil {
			return path
		}
		path = filepath.Dir(path)
	}
	return path
}

func readable(path string) error {
	if path == "" {
		return nil
	}
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0) // a pipe without a writer must not hold us
	if err != nil {
		return err
	}
	defer f.Close() //nolint:errcheck // only read
	info, err := f.Stat()
	switch {
	case err != nil:
		return err
	case info.IsDir():
		_, err = f.ReadDir(1)
	case info.Mode().IsRegular():
		_, err = f.Read(make([]byte, 1))
	}
	if errors.Is(err, io.EOF) { // it is empty
		return nil
	}
	return err
}

func lockable(path string) error {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close() //nolint:errcheck // only locked, for a moment
	if err := unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB); err != nil {
		return fmt.Errorf("lock %s: %w", path, err)
	}
	return nil
}
