package agent_test

import (
	"os"
	"testing"

	"go.uber.org/goleak"
	"go.uber.org/zap"

	"github.com/avgpipe/avgpipe/internal/agent"
	"github.com/avgpipe/avgpipe/internal/agent/agenttest"
	"github.com/avgpipe/avgpipe/internal/worker/control"
)

// TestMain makes this binary the fake worker and the fake tuning as well.
func TestMain(m *testing.M) {
	if len(os.Args) == 4 && os.Args[2] == "--assignment" {
		os.Exit(agenttest.Worker(os.Args[3]))
	}
	if len(os.Args) == 4 && os.Args[2] == "--request" {
		os.Exit(agenttest.Tune(os.Args[3]))
	}
	goleak.VerifyTestMain(m)
}

func TestLocalIsAnAgent(t *testing.T) {
	agenttest.Run(t, func(t *testing.T) agenttest.Rig {
		dir, err := os.MkdirTemp("", "agent-") //nolint:usetesting // t.TempDir's path is too long for a socket
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := os.RemoveAll(dir); err != nil {
				t.Error(err)
			}
		})
		open := func() agent.Agent {
			a, err := agent.Open(agent.Config{
				Node: "host", StateDir: dir, Worker: []string{os.Args[0], "worker"}, Tuning: []string{os.Args[0], "tuning"}, Log: zap.NewNop(),
				Limits: func() agent.Limits {
					return agent.Limits{OrphanAfter: agenttest.Patience, LogBytes: 1 << 20, LogFiles: 1, QuarantineFor: agenttest.Patience}
				},
			})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(a.Close)
			return a
		}
		return agenttest.Rig{
			Agent: open(), Another: open,
			Job: func(id string) {
				if err := os.MkdirAll(agent.JobDir(dir, id), 0o700); err != nil {
					t.Error(err)
				}
			},
			Log: func(id string) string {
				text, _ := os.ReadFile(control.LogPath(agent.JobDir(dir, id))) // it may not be there yet
				return string(text)
			},
		}
	})
}

func TestMemoryIsAnAgent(t *testing.T) {
	agenttest.Run(t, func(t *testing.T) agenttest.Rig {
		m := agenttest.NewMemory("host")
		t.Cleanup(m.Close)
		return agenttest.Rig{Agent: m, Job: func(string) {}, Log: m.JobLog}
	})
}
