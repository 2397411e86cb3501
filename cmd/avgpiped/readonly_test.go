package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/avgpipe/avgpipe/internal/envtest"
)

// disk is a file system in a file that turns read-only on demand, as one does whose device fails.
type disk struct {
	t          *testing.T
	image, dir string
	device     string // of the mounted image, such as loop0
}

// newDisk makes a file system and mounts it on a new directory. The test is skipped where that is not possible.
func newDisk(t *testing.T, dir string) *disk {
	t.Helper()
	envtest.Root(t)
	d := &disk{t: t, image: filepath.Join(t.TempDir(), "image"), dir: dir}
	d.run("truncate", "--size=32M", d.image)
	d.run("mkfs.ext4", "-q", d.image)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	d.mount()
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil && d.device != "" {
			t.Error(err)
		}
	})
	return d
}

func (d *disk) run(command string, arguments ...string) string {
	d.t.Helper()
	out, err := exec.CommandContext(d.t.Context(), command, arguments...).CombinedOutput()
	if err != nil {
		envtest.Missing(d.t, "no disk of a test's own can be made here: %s: %v: %s", command, err, out)
	}
	return strings.TrimSpace(string(out))
}

func (d *disk) mount() {
	d.t.Helper()
	d.run("mount", "-o", "loop,errors=remount-ro", d.image, d.dir)
	d.device = filepath.Base(d.run("findmnt", "--noheadings", "--output=SOURCE", d.dir))
}

func (d *disk) unmount() {
	d.t.Helper()
	d.device = ""
	if err := unix.Unmount(d.dir, 0); err != nil {
		d.t.Fatal(err)
	}
}

// fail makes the file system read-only under whoever writes to it.
func (d *disk) fail() {
	d.t.Helper()
	if err := os.WriteFile(filepath.Join("/sys/fs/ext4", d.device, "trigger_fs_error"), []byte("1"), 0o200); err != nil {
		envtest.Missing(d.t, "the file system cannot be made to fail here: %v", err)
	}
}

// TestReadOnlyRecordEndsTheDaemonInOrder: no panic, the path and the error in the last words, 1 for systemd. The worker trains on
// and is adopted once the disk works again.
func TestReadOnlyRecordEndsTheDaemonInOrder(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	record := newDisk(t, filepath.Join(s.dir, "state", "raft"))
	s.start()
	id := s.submit()
	s.committed(id, 10)
	worker := s.worker()
	record.fail()
	var code int
	if err := s.cmd.Wait(); err != nil {
		code = s.cmd.ProcessState.ExitCode()
	}
	s.cmd = nil
	log, err := os.ReadFile(filepath.Join(s.dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	lines := bytes.Split(bytes.TrimSpace(log), []byte("\n"))
	last := string(lines[len(lines)-1])
	if code != 1 || bytes.Contains(log, []byte("panic")) || !strings.Contains(last, filepath.Join(record.dir, "wal")) ||
		!strings.Contains(last, "read-only file system") && !strings.Contains(last, "input/output error") {
		t.Errorf("exit code %d, last words: %s", code, last)
	}
	if s.worker() != worker {
		t.Error("the worker did not outlive the daemon")
	}
	record.unmount()
	if out, err := exec.CommandContext(t.Context(), "fsck.ext4", "-p", "-f", record.image).CombinedOutput(); err != nil &&
		!strings.Contains(err.Error(), "exit status 1") { // 1: errors were mended
		t.Fatalf("fsck.ext4: %v: %s", err, out)
	}
	record.mount()
	s.start()
	s.done(id)
	if status, err := s.client.Job(t.Context(), id); err != nil || status.Generation != 1 {
		t.Errorf("worker %d was not adopted: generation %d, %v", worker, status.Generation, err)
	}
}
