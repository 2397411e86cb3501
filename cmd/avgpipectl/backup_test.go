package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/internal/node/nodetest"
)

func TestBackupAndRestore(t *testing.T) {
	d := nodetest.Start(t, nodetest.StateDir(t))
	want(t, exitDone, d, "submit", jobFile(t, d, "kept", 8, ""))
	want(t, exitDone, d, "watch", "kept")
	path := filepath.Join(t.TempDir(), "backup")
	if r := want(t, exitDone, d, "backup", path); !strings.Contains(r.out, "wrote "+path+", ") {
		t.Errorf("backup says %s", r.out)
	}
	whole, err := os.ReadFile(path)
	if info, statErr := os.Stat(path); err != nil || statErr != nil || info.Mode().Perm() != 0o600 {
		t.Fatal(err, statErr, info)
	}
	if r := want(t, exitRefused, d, "backup", path); !strings.Contains(r.messages, "is there already: name another file, or say --force") {
		t.Errorf("over a file: %s", r.messages)
	}
	if again, err := os.ReadFile(path); err != nil || !bytes.Equal(again, whole) {
		t.Errorf("the file changed: %v", err)
	}
	link := path + "-link"
	if err := os.Symlink(path, link); err != nil {
		t.Fatal(err)
	}
	if r := want(t, exitRefused, d, "backup", link, "--force"); !strings.Contains(r.messages, "is no regular file (L") {
		t.Errorf("over a link: %s", r.messages)
	}
	if to, err := os.Readlink(link); err != nil || to != path {
		t.Errorf("the link is replaced: it leads to %q (%v)", to, err)
	}
	want(t, exitDone, d, "backup", path, "--force")
	want(t, exitDone, d, "rm", "kept")
	if r := want(t, exitDone, d, "restore", path); !strings.Contains(r.out, "brought back 1 of 1 job of the backup of node test, as of ") || !strings.HasSuffix(r.out, ": 1\n") {
		t.Errorf("restore says %s", r.out)
	}
	if r := want(t, exitDone, d, "restore", path); !strings.HasSuffix(r.out, ": all are there\n") {
		t.Errorf("restore says %s", r.out)
	}
	if r := want(t, exitDone, d, "status"); !strings.Contains(r.out, "kept") {
		t.Errorf("the job is not back: %s", r.out)
	}
	if r := want(t, exitRefused, d, "restore", path+"x"); !strings.Contains(r.messages, "no such file") {
		t.Errorf("a file that is not there: %s", r.messages)
	}
	if r := want(t, exitFailed, d, "restore", jobFile(t, d, "other", 8, "")); !strings.Contains(r.messages, "nothing of it is used") {
		t.Errorf("a file that is no backup: %s", r.messages)
	}
	// A daemon that is not there leaves no file.
	if want(t, exitNoDaemon, nil, "backup", path+"2"); exists(path + "2") {
		t.Error("a backup of no daemon")
	}
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}
