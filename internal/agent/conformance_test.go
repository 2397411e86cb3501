package agent_test

import (
	"os"
	"testing"

	"github.com/avgpipe/avgpipe/internal/agent"
	"github.com/avgpipe/avgpipe/internal/agent/agenttest"
	"github.com/avgpipe/avgpipe/internal/envtest"
	"github.com/avgpipe/avgpipe/internal/worker/control"
)

// TestMain makes this binary the fake worker and the fake tuning as well.
func TestMain(m *testing.M) { agenttest.Main(m) }

func TestLocalIsAnAgent(t *testing.T) {
	for name, processes := range map[string]func(*testing.T) agent.Processes{
		"of processes":  func(*testing.T) agent.Processes { return nil },
		"of goroutines": func(t *testing.T) agent.Processes { return agenttest.NewProcesses(t) },
	} {
		t.Run(name, func(t *testing.T) {
			agenttest.Conforms(t, func(t *testing.T) agenttest.Rig {
				dir := envtest.ShortDir(t)
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
