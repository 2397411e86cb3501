package node_test

import (
	"bytes"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/checkpoint"
	"github.com/avgpipe/avgpipe/internal/coordinator"
	"github.com/avgpipe/avgpipe/internal/node"
	"github.com/avgpipe/avgpipe/internal/node/nodetest"
)

// done submits a short job and waits for its end.
func done(t *testing.T, d *nodetest.Daemon, name string) string {
	t.Helper()
	id := d.Submit(t, nodetest.Job(t, d.Dir, name, 12))
	d.Until(t, id, "ends", ended)
	return id
}

func jobPath(d *nodetest.Daemon, id string) string { return filepath.Join(d.Dir, "jobs", id) }

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// TestRemovedJobIsGoneForGood: its entry, its directory and its number.
func TestRemovedJobIsGoneForGood(t *testing.T) {
	t.Parallel()
	d := nodetest.Start(t, nodetest.StateDir(t))
	kept, gone := done(t, d, "kept"), done(t, d, "gone")
	running := d.Submit(t, nodetest.Job(t, d.Dir, "running", 100_000))
	var e *api.Error
	if _, err := d.Client.Remove(t.Context(), running); !errors.As(err, &e) || e.Status != http.StatusConflict ||
		!strings.Contains(e.Message, "cancel") || !strings.Contains(e.Message, "--force") {
		t.Errorf("a running job: %v", err)
	}
	if s, err := d.Client.Remove(t.Context(), "gone"); err != nil || s.ID != gone || s.State != api.Done {
		t.Fatalf("remove: %+v, %v", s, err)
	}
	if _, err := d.Client.Job(t.Context(), gone); !errors.As(err, &e) || e.Status != http.StatusNotFound {
		t.Errorf("the removed job: %v", err)
	}
	nodetest.Eventually(t, "the directory is gone", func() bool { return !exists(jobPath(d, gone)) })
	if !exists(jobPath(d, kept)) {
		t.Error("another job's directory is gone")
	}
	if _, err := d.Client.Cancel(t.Context(), running); err != nil {
		t.Fatal(err)
	}
	d.Until(t, running, "ends", ended)
	if _, err := d.Client.Remove(t.Context(), running); err != nil { // its worker has only just ended
		t.Error(err)
	}
	d.Stop(t)
	d = nodetest.Start(t, d.Dir)
	if id := done(t, d, "next"); id != "4" {
		t.Errorf("the next job has number %s; 3 was used", id)
	}
}

// TestDirectoryWithoutAJobStays: it belongs to another life of the state, and its number is not used.
func TestDirectoryWithoutAJobStays(t *testing.T) {
	t.Parallel()
	d := nodetest.Start(t, nodetest.StateDir(t))
	id := done(t, d, "x")
	d.Stop(t)
	if err := os.Rename(jobPath(d, id), jobPath(d, "7")); err != nil {
		t.Fatal(err)
	}
	before := tree(t, jobPath(d, "7"))
	d = nodetest.Start(t, d.Dir)
	if id := done(t, d, "y"); id != "8" {
		t.Errorf("the next job has number %s; the directory 7 is there", id)
	}
	if _, err := d.Client.Remove(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	d.Stop(t)
	nodetest.Start(t, d.Dir)
	if after := tree(t, jobPath(d, "7")); after != before || !strings.Contains(after, ".shard") {
		t.Errorf("the directory held\n%sand holds\n%s", before, after)
	}
}

// TestInterruptedRemovalIsFinished at the next start, unless the state still knows the job.
func TestInterruptedRemovalIsFinished(t *testing.T) {
	t.Parallel()
	d := nodetest.Start(t, nodetest.StateDir(t))
	gone, kept := done(t, d, "gone"), done(t, d, "kept")
	aside := filepath.Join(d.Dir, "aside")
	if err := os.CopyFS(filepath.Join(aside, "shards"), os.DirFS(filepath.Join(jobPath(d, gone), "shards"))); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Client.Remove(t.Context(), gone); err != nil {
		t.Fatal(err)
	}
	d.Stop(t)
	if err := os.Rename(aside, jobPath(d, gone)); err != nil { // as if the deletion had not begun
		t.Fatal(err)
	}
	for _, id := range []string{gone, kept} {
		path := filepath.Join(jobPath(d, id), "removed.record")
		if err := checkpoint.WriteRecord(path, "removed", 1, map[string]string{"reason": "x"}, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	d = nodetest.Start(t, d.Dir)
	if exists(jobPath(d, gone)) {
		t.Error("the removed job's directory is still there")
	}
	if exists(filepath.Join(jobPath(d, kept), "removed.record")) || !exists(filepath.Join(jobPath(d, kept), "shards")) {
		t.Error("the directory of a job that the state knows is not as it was")
	}
}

// TestEndedJobsAreBounded, in the state and on the disk, with the reason in the log.
func TestEndedJobsAreBounded(t *testing.T) {
	t.Parallel()
	d := nodetest.Start(t, nodetest.StateDir(t), func(c *node.Config) {
		limits := c.Limits()
		limits.Jobs.Retain = coordinator.Retention{Jobs: 2}
		c.Limits = func() node.Limits { return limits }
	})
	for _, name := range []string{"a", "b", "c", "d"} {
		done(t, d, name)
	}
	nodetest.Eventually(t, "two jobs are left", func() bool {
		jobs, err := d.Client.Jobs(t.Context())
		return err == nil && len(jobs) == 2 && jobs[0].ID == "3" && jobs[1].ID == "4" && !exists(jobPath(d, "1")) && !exists(jobPath(d, "2"))
	})
	log, err := os.ReadFile(filepath.Join(d.Dir, "daemon.log"))
	if err != nil || !strings.Contains(string(log), "there are 3 ended jobs, keep_ended_jobs is 2") {
		t.Errorf("the log does not say why: %v", err)
	}
}

// TestRecover: the record of jobs is made again from the jobs' directories, whatever is wrong with it; nothing is deleted.
func TestRecover(t *testing.T) {
	t.Parallel()
	d := nodetest.Start(t, nodetest.StateDir(t))
	first := done(t, d, "first")
	second := d.Submit(t, nodetest.Job(t, d.Dir, "second", 100_000))
	d.Until(t, second, "has a round", func(s api.JobStatus) bool { return s.CommittedRound > 0 })
	var out bytes.Buffer
	if err := node.Recover(t.Context(), d.Dir, "", false, &out); err == nil || !strings.Contains(err.Error(), "in use by another daemon") {
		t.Errorf("beside a daemon: %v", err)
	}
	d.Stop(t)
	before := d.Dir + "/jobs"
	shards := tree(t, before)
	damaged, err := filepath.Glob(filepath.Join(before, first, "shards", "*.shard"))
	if err != nil || len(damaged) == 0 {
		t.Fatalf("%v, %v", damaged, err)
	}
	for _, path := range damaged { // of the same length
		f, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteAt([]byte("damage"), 100); errors.Join(err, f.Close()) != nil {
			t.Fatal(err)
		}
	}
	if err := node.Recover(t.Context(), d.Dir, "", false, &out); err == nil || !strings.Contains(err.Error(), "nothing to recover") {
		t.Errorf("a whole record: %v", err)
	}
	damage := []byte("garbage")
	for _, path := range []string{"raft/wal/meta", "identity"} {
		if err := os.WriteFile(filepath.Join(d.Dir, path), damage, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	refused(t, d.Dir, "identity is damaged", "avgpiped recover")
	out.Reset()
	if err := node.Recover(t.Context(), d.Dir, "test", true, &out); err != nil {
		t.Fatal(err)
	}
	if now, err := os.ReadFile(filepath.Join(d.Dir, "raft/wal/meta")); err != nil || !bytes.Equal(now, damage) {
		t.Errorf("the dry run changed the log: %q, %v", now, err)
	}
	if err := node.Recover(t.Context(), d.Dir, "test", false, &out); err != nil {
		t.Fatalf("%v; it said\n%s", err, &out)
	}
	for _, words := range []string{"dry run", "job 1 (first): recovered as done, it was done; not usable: round", "stage 0: shard " + before, "job 2 (second): recovered as failed, it was running; round"} {
		if !strings.Contains(out.String(), words) {
			t.Errorf("it said\n%s\nwhich has no %q", &out, words)
		}
	}
	if after := tree(t, before); after != shards {
		t.Errorf("the jobs' files were\n%sand are\n%s", shards, after)
	}
	for _, pattern := range []string{"raft.damaged-*/wal/meta", "identity.damaged-*"} {
		found, err := filepath.Glob(filepath.Join(d.Dir, pattern))
		if err != nil || len(found) != 1 {
			t.Errorf("%s: %v, %v", pattern, found, err)
		}
	}
	d = nodetest.Start(t, d.Dir)
	if s, err := d.Client.Job(t.Context(), first); err != nil || s.State != api.Done || s.CommittedRound == 0 {
		t.Errorf("the job that was done: %+v, %v", s, err)
	}
	s, err := d.Client.Job(t.Context(), second)
	if err != nil || s.State != api.Failed || s.CommittedRound == 0 || !strings.Contains(s.Reason, "avgpipectl resume "+second) {
		t.Errorf("the job that ran: %+v, %v", s, err)
	}
	if id := done(t, d, "third"); id != "3" {
		t.Errorf("the next job has number %s", id)
	}
}
