package obstacle_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/avgpipe/avgpipe/internal/checkpoint"
	"github.com/avgpipe/avgpipe/internal/obstacle"
)

func TestObstaclesAreToldFromOtherFailures(t *testing.T) {
	at := func(errno syscall.Errno) error {
		return fmt.Errorf("read the data: %w", &fs.PathError{Op: "open", Path: "/data/a.txt", Err: errno})
	}
	space := &checkpoint.SpaceError{Dir: "/var/lib/avgpipe", Needed: 1_200_000_000, Available: -1, Err: syscall.ENOSPC}
	for _, c := range []struct {
		err  error
		says string // "": no obstacle
	}{
		{fmt.Errorf("commit round 3: %w", space), "no space on /var/lib/avgpipe, 1.2 GB needed"},
		{at(syscall.EDQUOT), "no space on /data/a.txt"},
		{at(syscall.ENOENT), "/data/a.txt is missing"},
		{at(syscall.ENOTDIR), "/data/a.txt is missing"},
		{at(syscall.EIO), "/data/a.txt cannot be read or written: read the data: open /data/a.txt: input/output error"},
		{at(syscall.ESTALE), "/data/a.txt cannot be read or written: read the data: open /data/a.txt: stale file handle"},
		{at(syscall.EROFS), "/data/a.txt is on a read-only file system"},
		{at(syscall.ENODATA), "/data/a.txt is a directory without files"},
		{at(syscall.EMFILE), "no file descriptor is free"},
		{at(syscall.EACCES), ""},
		{errors.New("loss is NaN"), ""},
		{nil, ""},
	} {
		o := obstacle.Of(c.err)
		if (o != nil) != (c.says != "") || o != nil && o.String() != c.says {
			t.Errorf("%v: obstacle %v, want %q", c.err, o, c.says)
		}
	}
}

func TestMissingFilesPassWhenTheyAreBack(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "mount")
	file := filepath.Join(dir, "shard")
	_, err := os.Open(file)
	o := obstacle.Of(err)
	if o == nil || o.Passed() == nil {
		t.Fatalf("obstacle %v has passed", o)
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if o.Passed() == nil {
		t.Error("passed with the directory alone")
	}
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := o.Passed(); err != nil {
		t.Errorf("the file is back: %v", err)
	}
}

func TestAFullDiskPassesWhenTheBytesAreFree(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "not", "there")
	full := &obstacle.Obstacle{Kind: obstacle.Space, Path: dir, Bytes: 1 << 60}
	if err := full.Passed(); err == nil || !strings.Contains(err.Error(), "free") {
		t.Errorf("an exabyte is free: %v", err)
	}
	full.Bytes = 1
	if err := full.Passed(); err != nil {
		t.Errorf("no byte is free: %v", err)
	}
}

func TestALockPassesWithItsHolder(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	o := &obstacle.Obstacle{Kind: obstacle.Busy, Path: path, Text: "held"}
	if o.Passed() == nil {
		t.Error("a lock that is held has passed")
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if err := o.Passed(); err != nil {
		t.Errorf("nobody holds it: %v", err)
	}
}

func TestADamagedFilePassesWhenItHasItsLengthAgain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "shard")
	o := &obstacle.Obstacle{Kind: obstacle.Damaged, Path: path, Bytes: 3}
	for _, text := range []string{"", "ab"} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if o.Passed() == nil {
			t.Errorf("passed with %q", text)
		}
	}
	if err := os.WriteFile(path, []byte("abc"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := o.Passed(); err != nil {
		t.Errorf("the file is back: %v", err)
	}
	if (&obstacle.Obstacle{Kind: obstacle.Damaged}).Passed() == nil {
		t.Error("damage that no file is known of has passed")
	}
}
