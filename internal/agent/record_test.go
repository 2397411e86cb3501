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
	dir := t.TempDir()
	a, err := agent.Open(agent.Config{
		Node: "here", StateDir: dir, Log: zap.NewNop(), Processes: agenttest.NewProcesses(t), Limits: func() agent.Limits { return agent.Limits{} },
		Peers: func(string) (agent.Agent, error) { return nil, agent.ErrUnreachable },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.Close)
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
