package agent_test

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"go.uber.org/zap"

	"github.com/avgpipe/avgpipe/internal/agent"
	"github.com/avgpipe/avgpipe/internal/agent/agenttest"
	"github.com/avgpipe/avgpipe/internal/cluster"
)

// A node that joins anew, under the name of one that was removed, is said to have had jobs, and has a new state directory: that is no mount which is late.
func TestJobsComeToANodeThatJoinedAnew(t *testing.T) {
	a, dir := open(t)
	if err := a.Record(t.Context(), &cluster.Job{ID: "1"}, true); err != nil {
		t.Fatalf("a job on a node that has had none: %v", err)
	}
	jobs := filepath.Join(dir, "jobs")
	if err := errors.Join(os.Rename(jobs, filepath.Join(dir, "away")), os.Mkdir(jobs, 0o750)); err != nil {
		t.Fatal(err)
	}
	if err := a.Record(t.Context(), &cluster.Job{ID: "2"}, true); !errors.Is(err, syscall.ENODATA) {
		t.Errorf("a job where the directories of all jobs are away: %v", err)
	}
	if err := a.Record(t.Context(), &cluster.Job{ID: "2"}, false); err != nil {
		t.Errorf("the first job that is to run: %v", err)
	}
}

// Where the daemon itself deleted the last directory of a job, an empty jobs/ is no mount that is late.
func TestJobsComeAfterTheLastOneWasRemoved(t *testing.T) {
	a, dir := open(t)
	jobs := filepath.Join(dir, "jobs")
	remove := func(j *cluster.Job) {
		t.Helper()
		if own, err := a.Retire(t.Context(), j, "it was removed"); err != nil || !own {
			t.Fatalf("retire job %s: own %t, %v", j.ID, own, err)
		}
		if err := a.Delete(t.Context(), j.ID); err != nil {
			t.Fatal(err)
		}
	}
	one, two := &cluster.Job{ID: "1"}, &cluster.Job{ID: "2"}
	if err := errors.Join(a.Record(t.Context(), one, true), a.Record(t.Context(), two, true)); err != nil {
		t.Fatal(err)
	}
	remove(one)
	away := filepath.Join(dir, "away")
	if err := errors.Join(os.Rename(jobs, away), os.Mkdir(jobs, 0o750)); err != nil {
		t.Fatal(err)
	}
	if err := a.Record(t.Context(), &cluster.Job{ID: "3"}, true); !errors.Is(err, syscall.ENODATA) {
		t.Errorf("a job while a directory that is left is away: %v", err)
	}
	if err := errors.Join(os.Remove(jobs), os.Rename(away, jobs)); err != nil {
		t.Fatal(err)
	}
	remove(two)
	if err := a.Record(t.Context(), &cluster.Job{ID: "3"}, true); err != nil {
		t.Fatalf("a job after the last one was removed: %v", err)
	}
	if err := errors.Join(os.Rename(jobs, away), os.Mkdir(jobs, 0o750)); err != nil {
		t.Fatal(err)
	}
	if err := a.Record(t.Context(), &cluster.Job{ID: "4"}, true); !errors.Is(err, syscall.ENODATA) {
		t.Errorf("a job while the next one's directory is away: %v", err)
	}
}

// open opens the agent of a new state directory.
func open(t *testing.T) (*agent.Local, string) {
	t.Helper()
	dir := t.TempDir()
	a, err := agent.Open(agent.Config{
		Node: "here", StateDir: dir, Log: zap.NewNop(), Processes: agenttest.NewProcesses(t), Limits: func() agent.Limits { return agent.Limits{} },
		Peers: func(string) (agent.Agent, error) { return nil, agent.ErrUnreachable },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.Close)
	return a, dir
}
