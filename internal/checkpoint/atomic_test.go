package checkpoint_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/avgpipe/avgpipe/internal/checkpoint"
	"github.com/avgpipe/avgpipe/internal/checkpoint/checkpointtest"
)

// names lists a directory.
func names(t *testing.T, dir string) []string {
	t.Helper()
	list, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func read(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// TestWriteFileReplacesWholeOrNotAtAll: after a fault at any step the old content stands and no temporary file is left.
func TestWriteFileReplacesWholeOrNotAtAll(t *testing.T) {
	fault := errors.New("injected")
	for _, op := range []checkpoint.Op{
		checkpoint.CreateTemp, checkpoint.Write, checkpoint.Sync, checkpoint.Close, checkpoint.Rename,
	} {
		t.Run(string(op), func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "file")
			faults := checkpointtest.New(t)
			if err := checkpoint.WriteFile(path, []byte("old"), 0o640); err != nil {
				t.Fatal(err)
			}
			faults.Fail(op, fault)
			err := checkpoint.WriteFile(path, []byte("new"), 0o640)
			if !errors.Is(err, fault) || !strings.Contains(err.Error(), dir) {
				t.Errorf("error %v: expected the injected one, with the path", err)
			}
			if got := read(t, path); got != "old" {
				t.Errorf("the file holds %q, expected the old content", got)
			}
			if list := names(t, dir); len(list) != 1 {
				t.Errorf("the directory holds %v, expected the file alone", list)
			}
			faults.Fail(op, nil)
			if err := checkpoint.WriteFile(path, []byte("new"), 0o640); err != nil || read(t, path) != "new" {
				t.Errorf("afterwards: %v, the file holds %q", err, read(t, path))
			}
			info, err := os.Stat(path)
			if err != nil || info.Mode().Perm() != 0o640 {
				t.Errorf("mode %v, %v, expected 0640", info.Mode(), err)
			}
		})
	}
}

// TestDirectoryIsSyncedAfterRename: a failure there is reported, with the new file in place.
func TestDirectoryIsSyncedAfterRename(t *testing.T) {
	dir := t.TempDir()
	faults := checkpointtest.New(t)
	fault := errors.New("injected")
	faults.Fail(checkpoint.SyncDir, fault)
	err := checkpoint.WriteFile(filepath.Join(dir, "file"), []byte("new"), 0o640)
	if !errors.Is(err, fault) || read(t, filepath.Join(dir, "file")) != "new" {
		t.Errorf("error %v, directory %v", err, names(t, dir))
	}
}

// TestCrashLeavesAtWorstATemporaryFile: after a kill before any step the old content stands, and RemoveStale takes away
// what is left.
func TestCrashLeavesAtWorstATemporaryFile(t *testing.T) {
	for _, op := range []checkpoint.Op{checkpoint.Write, checkpoint.Sync, checkpoint.Rename} {
		t.Run(string(op), func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "file")
			if err := checkpoint.WriteFile(path, []byte("old"), 0o640); err != nil {
				t.Fatal(err)
			}
			faults := checkpointtest.New(t)
			faults.CrashAt(op)
			if err := checkpoint.WriteFile(path, []byte("new"), 0o640); !errors.Is(err, checkpointtest.ErrCrashed) {
				t.Fatalf("error %v", err)
			}
			if list := names(t, dir); len(list) != 2 || read(t, path) != "old" {
				t.Fatalf("the directory holds %v, the file %q", list, read(t, path))
			}
			faults.CrashAt("")
			if n, err := checkpoint.RemoveStale(dir); n != 1 || err != nil {
				t.Errorf("RemoveStale removed %d: %v", n, err)
			}
			if list := names(t, dir); len(list) != 1 {
				t.Errorf("the directory holds %v, expected the file alone", list)
			}
		})
	}
}

// TestRemoveStaleSparesWhatIsBeingWritten and everything that is not a temporary file.
func TestRemoveStaleSparesWhatIsBeingWritten(t *testing.T) {
	dir := t.TempDir()
	f, err := checkpoint.Create(dir, 0o640, 0)
	if err != nil {
		t.Fatal(err)
	}
	if n, err := checkpoint.RemoveStale(dir); n != 0 || err != nil {
		t.Errorf("RemoveStale removed %d: %v", n, err)
	}
	if err := f.Commit("file"); err != nil {
		t.Fatal(err)
	}
	if err := f.Abort(); err != nil {
		t.Errorf("abort after commit: %v", err)
	}
	if err := f.Commit("again"); err == nil {
		t.Error("a second commit succeeded")
	}
	if n, err := checkpoint.RemoveStale(dir); n != 0 || err != nil {
		t.Errorf("RemoveStale took %d files that are not temporary: %v", n, err)
	}
	if list := names(t, dir); len(list) != 1 {
		t.Errorf("the directory holds %v", list)
	}
}

// TestFullDiskNamesBytesNeededAndAvailable, whichever step notices it.
func TestFullDiskNamesBytesNeededAndAvailable(t *testing.T) {
	for _, step := range []string{"write", "sync", "create"} {
		dir := t.TempDir()
		faults := checkpointtest.New(t)
		full := &fs.PathError{Op: step, Path: dir, Err: syscall.ENOSPC}
		switch step {
		case "write":
			faults.Capacity(7)
		case "sync":
			faults.Fail(checkpoint.Sync, full)
		case "create":
			faults.Fail(checkpoint.CreateTemp, full)
		}
		err := checkpoint.WriteFile(filepath.Join(dir, "file"), make([]byte, 1000), 0o640)
		var space *checkpoint.SpaceError
		if !errors.As(err, &space) || space.Needed != 1000 || space.Available < 0 || !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("%s: error %v", step, err)
			continue
		}
		if !strings.Contains(err.Error(), dir) || !strings.Contains(err.Error(), "needs 1000 bytes") {
			t.Errorf("%s: error %v: expected the directory and the bytes", step, err)
		}
		if list := names(t, dir); len(list) != 0 {
			t.Errorf("%s: the directory holds %v", step, list)
		}
	}
}

// TestWriteAtStaysWithinWhatWasWritten.
func TestWriteAtStaysWithinWhatWasWritten(t *testing.T) {
	dir := t.TempDir()
	f, err := checkpoint.Create(dir, 0o640, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Write([]byte("abcdef")); err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte("XY"), 2); err != nil {
		t.Fatal(err)
	}
	for _, offset := range []int64{-1, 5} {
		if _, err := f.WriteAt([]byte("XY"), offset); err == nil {
			t.Errorf("WriteAt %d succeeded", offset)
		}
	}
	if err := f.Commit("file"); err != nil || read(t, filepath.Join(dir, "file")) != "abXYef" {
		t.Errorf("%v, the file holds %q", err, read(t, filepath.Join(dir, "file")))
	}
}
