package node_test

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/internal/node"
	"github.com/avgpipe/avgpipe/internal/node/nodetest"
)

// refused starts a daemon that must refuse its state directory, with all of the words.
func refused(t *testing.T, dir string, words ...string) {
	t.Helper()
	err := node.Run(t.Context(), nodetest.Config(dir, io.Discard))
	if err == nil {
		t.Fatal("the daemon started")
	}
	for _, word := range words {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("error %v\ndoes not say %q", err, word)
		}
	}
}

// tree lists the files below a directory with their sizes.
func tree(t *testing.T, dir string) string {
	t.Helper()
	var out strings.Builder
	err := filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
		if err == nil && e.Type().IsRegular() {
			out.WriteString(path + "\n")
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// TestLostRecordOfJobsIsRefused: a missing Raft log beside the directories of jobs is damage, and nothing of theirs is touched. It
// once began anew, with the same ids, and deleted the shards.
func TestLostRecordOfJobsIsRefused(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]func(dir string) error{
		"raft gone":                  func(dir string) error { return os.Rename(filepath.Join(dir, "raft"), filepath.Join(dir, "away")) },
		"log gone":                   func(dir string) error { return os.RemoveAll(filepath.Join(dir, "raft", "wal")) },
		"log empty":                  func(dir string) error { return os.Truncate(filepath.Join(dir, "raft", "wal", "meta"), 0) },
		"of a program without names": func(dir string) error { return os.RemoveAll(filepath.Join(dir, "raft")) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := nodetest.Start(t, nodetest.StateDir(t))
			id := d.Submit(t, nodetest.Job(t, d.Dir, "kept", 12))
			d.Until(t, id, "ends", ended)
			d.Stop(t)
			if err := lose(d.Dir); err != nil {
				t.Fatal(err)
			}
			if strings.HasPrefix(name, "of a program") {
				if err := os.Remove(filepath.Join(d.Dir, "identity")); err != nil {
					t.Fatal(err)
				}
			}
			before := tree(t, filepath.Join(d.Dir, "jobs"))
			for range 2 {
				refused(t, d.Dir, filepath.Join(d.Dir, "raft", "wal", "meta"), "restore", "avgpiped recover")
			}
			if after := tree(t, filepath.Join(d.Dir, "jobs")); after != before || !strings.Contains(after, ".shard") {
				t.Errorf("files of jobs before:\n%safter:\n%s", before, after)
			}
		})
	}
}

// TestNameIsKeptOrRefused: a damaged name is refused at once, and so is a configuration that names the node otherwise.
func TestNameIsKeptOrRefused(t *testing.T) {
	t.Parallel()
	d := nodetest.Start(t, nodetest.StateDir(t))
	d.Stop(t)
	identity := filepath.Join(d.Dir, "identity")
	whole, err := os.ReadFile(identity)
	if err != nil {
		t.Fatal(err)
	}
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(identity, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, text := range []string{"", "other", string(whole[:len(whole)-3]), strings.Replace(string(whole), "test", "tent", 1)} {
		write(text)
		refused(t, d.Dir, identity, "damaged", "restore it from a backup")
		if now, err := os.ReadFile(identity); err != nil || string(now) != text {
			t.Errorf("the damaged record was changed to %q, %v", now, err)
		}
	}
	write(string(whole))
	renamed := nodetest.Config(d.Dir, io.Discard)
	renamed.NodeID = "another"
	if err := node.Run(t.Context(), renamed); err == nil || !strings.Contains(err.Error(), `is "test", the configuration says "another": a node keeps its name`) {
		t.Errorf("a node of another name: %v", err)
	}
	d = nodetest.Start(t, d.Dir)
	d.Stop(t)
	if now, err := os.ReadFile(identity); err != nil || string(now) != string(whole) {
		t.Errorf("the record is %q, %v; want %q", now, err, whole)
	}
}

// TestWhatKilledWritesLeftGoesAtTheStart, and nothing else does.
func TestWhatKilledWritesLeftGoesAtTheStart(t *testing.T) {
	t.Parallel()
	d := nodetest.Start(t, nodetest.StateDir(t))
	id := d.Submit(t, nodetest.Job(t, d.Dir, "x", 12))
	d.Until(t, id, "ends", ended)
	d.Stop(t)
	job := filepath.Join(d.Dir, "jobs", id)
	var gone, kept []string
	for _, dir := range []string{d.Dir, job, filepath.Join(job, "shards"), filepath.Join(d.Dir, "raft", "snapshots")} {
		gone = append(gone, filepath.Join(dir, ".tmp-123456"))
		kept = append(kept, filepath.Join(dir, ".tmp-notes"), filepath.Join(dir, "x.tmp-1"))
	}
	kept = append(kept, filepath.Join(d.Dir, "jobs", ".tmp-1"), filepath.Join(d.Dir, "jobs", "mine", ".tmp-1"))
	if err := os.Mkdir(filepath.Join(d.Dir, "jobs", "mine"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, path := range append(gone, kept...) {
		if err := os.WriteFile(path, []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	nodetest.Start(t, d.Dir)
	for _, path := range gone {
		if _, err := os.Stat(path); err == nil {
			t.Errorf("%s is still there", path)
		}
	}
	for _, path := range kept {
		if _, err := os.Stat(path); err != nil {
			t.Errorf("%s is gone", path)
		}
	}
}
