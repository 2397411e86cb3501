package node_test

import (
	"bytes"
	"errors"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/node/nodetest"
)

// refusal returns the status and the text of an answer that is an error.
func refusal(err error) (int, string) {
	if e, ok := errors.AsType[*api.Error](err); ok {
		return e.Status, e.Message
	}
	return 0, ""
}

// TestABackupIsRestoredThroughAnyNode: made and restored at a node that does not lead, on a cluster that has gone on meanwhile.
func TestABackupIsRestoredThroughAnyNode(t *testing.T) {
	t.Parallel()
	all := form(t, 3)
	_, others := leader(t, all)
	at := others[0]
	gone := at.Submit(t, nodetest.Job(t, at.Dir, "gone", 20))
	at.Until(t, gone, "ends", ended)
	works := at.Submit(t, nodetest.Job(t, at.Dir, "works", 1e6))
	at.Until(t, works, "commits", committed)
	var file bytes.Buffer
	nodetest.Eventually(t, "a backup is made", func() bool {
		file.Reset()
		return at.Client.Backup(t.Context(), &file) == nil
	})
	restore := func(c *api.Client, data []byte) (api.RestoreResponse, error) {
		return c.Restore(t.Context(), bytes.NewReader(data))
	}
	if status, text := refusal(second(restore(at.Client, file.Bytes()))); status != http.StatusConflict || !strings.Contains(text, "have not ended") {
		t.Errorf("over a job that works: %d %s", status, text)
	}
	if _, err := at.Client.Cancel(t.Context(), works); err != nil {
		t.Fatal(err)
	}
	before := at.Until(t, works, "ends", ended)
	if _, err := at.Client.Remove(t.Context(), gone); err != nil {
		t.Fatal(err)
	}
	damaged := bytes.Clone(file.Bytes())
	damaged[len(damaged)/2]++
	if status, text := refusal(second(restore(at.Client, damaged))); status != http.StatusBadRequest || !strings.Contains(text, "nothing of it is used") {
		t.Errorf("a damaged one: %d %s", status, text)
	}
	if status, text := refusal(second(restore(login(t, at, "submit"), file.Bytes()))); status != http.StatusForbidden || !strings.Contains(text, "role submit") {
		t.Errorf("by one who may not: %d %s", status, text)
	}
	if jobs, err := at.Client.Jobs(t.Context()); err != nil || len(jobs) != 1 {
		t.Errorf("what was refused changed something: %+v, %v", jobs, err)
	}
	was, err := restore(at.Client, file.Bytes())
	if err != nil || was.Jobs != 2 || strings.Join(was.Back, " ") != gone || len(was.Interrupted) != 0 {
		t.Fatalf("%+v, %v", was, err)
	}
	for _, h := range all {
		nodetest.Eventually(t, h.name+" has both jobs", func() bool {
			jobs, err := h.Client.Jobs(t.Context())
			return err == nil && len(jobs) == 2 && jobs[0].ID == gone && jobs[1].State == api.Cancelled && jobs[1].CommittedRound == before.CommittedRound
		})
	}
	if _, err := at.Client.Resume(t.Context(), works, api.ResumeRequest{}); err != nil {
		t.Fatal(err)
	}
	at.Until(t, works, "goes on", func(s api.JobStatus) bool { return s.CommittedRound > before.CommittedRound })
	for _, h := range all {
		h.Stop(t)
	}
	text := audits(t, all...)
	for _, want := range []string{
		`"operation":"backup","object":"/v1/backup","status":200`, `"operation":"restore","object":"/v1/restore","status":200`,
		`"operation":"restore","object":"/v1/restore","status":409`, `"operation":"restore","object":"/v1/restore","status":403`,
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the audit logs lack %s:\n%s", want, text)
		}
	}
}

// removeSockets removes those that workers which ended while they started have left, and which cannot be copied.
func removeSockets(t *testing.T, dir string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type()&fs.ModeSocket != 0 {
			err = os.Remove(path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestAJobGoesOnFromABackup, where its record is lost and its files are not: on another daemon.
func TestAJobGoesOnFromABackup(t *testing.T) {
	t.Parallel()
	old := nodetest.Start(t, nodetest.StateDir(t))
	// It commits where it is told to end, and nowhere else: both rounds are kept.
	id := old.Submit(t, strings.Replace(nodetest.Job(t, old.Dir, "works", 1e6), "commit_every: 10", "commit_every: 900000", 1))
	old.Until(t, id, "trains", func(s api.JobStatus) bool { return s.Step > 0 })
	if _, err := old.Client.Cancel(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	before := old.Until(t, id, "ends", ended)
	if _, err := old.Client.Resume(t.Context(), id, api.ResumeRequest{}); err != nil {
		t.Fatal(err)
	}
	var file bytes.Buffer
	if err := old.Client.Backup(t.Context(), &file); err != nil {
		t.Fatal(err)
	}
	old.Stop(t)
	fresh := nodetest.Start(t, nodetest.StateDir(t))
	removeSockets(t, old.Dir)
	if err := os.CopyFS(filepath.Join(fresh.Dir, "jobs"), os.DirFS(filepath.Join(old.Dir, "jobs"))); err != nil {
		t.Fatal(err)
	}
	was, err := fresh.Client.Restore(t.Context(), &file)
	if err != nil || strings.Join(was.Back, " ") != id || strings.Join(was.Interrupted, " ") != id {
		t.Fatalf("%+v, %v", was, err)
	}
	s, err := fresh.Client.Job(t.Context(), id)
	if err != nil || s.State != api.Failed || !strings.Contains(s.Reason, "restored from the backup of") || s.CommittedRound != before.CommittedRound {
		t.Fatalf("%+v, %v", s, err)
	}
	if _, err := fresh.Client.Resume(t.Context(), id, api.ResumeRequest{}); err != nil {
		t.Fatal(err)
	}
	fresh.Until(t, id, "goes on", func(s api.JobStatus) bool { return s.Step > before.Step })
	if other := fresh.Submit(t, nodetest.Job(t, fresh.Dir, "next", 20)); other == id {
		t.Errorf("the number %s is given twice", id)
	}
}

func second[A any](_ A, err error) error { return err }

// audits are the audit logs of nodes that have stopped.
func audits(t *testing.T, all ...*host) string {
	t.Helper()
	var text []byte
	for _, h := range all {
		one, err := os.ReadFile(filepath.Join(h.Dir, "audit.log"))
		if err != nil {
			t.Fatal(err)
		}
		text = append(text, one...)
	}
	return string(text)
}
