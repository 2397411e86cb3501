package agent_test

import (
	"os"
	"testing"

	"go.uber.org/goleak"

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
	for name, processes := range map[string]func(*testing.T) agent.Processes{
		"of processes":  func(*testing.T) agent.Processes { return nil },
		"of goroutines": func(t *testing.T) agent.Processes { return agenttest.NewProcesses(t) },
	} {
		t.Run(name, func(t *testing.T) {
			agenttest.Conforms(t, func(t *testing.T) agenttest.Rig {
				dir, err := os.MkdirTemp("", "agent-") //nolint:usetesting // t.TempDir's path is too long for a socket
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() {
					if err := os.RemoveAll(dir); err != nil {
						t.Error(err)
					}
				})
				p := processes(t)
				return agenttest.Rig{
					Agent: agenttest.Open(t, "a", dir, p), Another: func() agent.Agent { return agenttest.Open(t, "a", dir, p) },
					Log: func(id string) string {
						text, _ := os.ReadFile(control.LogPath(agent.JobDir(dir, id))) // it may not be there yet
						return string(text)
					},
				}
			})
		})
	}
}
