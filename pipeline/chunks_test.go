package pipeline

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// grids have several stages on a device: round and round, in a V, all on one device, and halves of backwards between.
var grids = map[string]struct {
	stages, micros int
	grid           string
}{
	"interleaved": {4, 4, `
		0F0 0F1 2F0 2F1 0F2 2B0 0F3 2B1 2F2 0B0 2F3 0B1 2B2 2B3 0B2 0B3
		1F0 1F1 3F0 3B0 3F1 3B1 1F2 1B0 1F3 1B1 3F2 3B2 3F3 3B3 1B2 1B3`},
	"v": {4, 3, `
		0F0 0F1 3F0 3B0 0F2 3F1 3B1 3F2 3B2 0B0 0B1 0B2
		1F0 2F0 1F1 2F1 2B0 1B0 1F2 2F2 2B1 1B1 2B2 1B2`},
	"one device": {3, 2, `0F0 1F0 0F1 2F0 2B0 1F1 2F1 2B1 1B0 1B1 0B0 0B1`},
	"v in halves": {4, 3, `
		0F0 0F1 3F0 3I0 0F2 3F1 3I1 3W0 3F2 3I2 0I0 3W1 0I1 0W0 3W2 0I2 0W1 0W2
		1F0 2F0 1F1 2F1 2I0 1I0 1F2 2F2 2I1 1I1 2W0 1W0 2I2 1I2 2W1 1W1 2W2 1W2`},
	"uneven": {3, 3, `
		0F0 0F1 2F0 2B0 0F2 2F1 2B1 2F2 2B2 0B0 0B1 0B2
		1F0 1F1 1B0 1F2 1B1 1B2`},
}

func TestStagesOfOneDeviceComputeTheSameBits(t *testing.T) {
	for name, g := range grids {
		for pipelines := 1; pipelines <= 2; pipelines++ {
			t.Run(fmt.Sprintf("%s N%d", name, pipelines), func(t *testing.T) {
				t.Parallel()
				r := &run{
					grid: g.grid, stages: g.stages, micros: g.micros, pipelines: pipelines, rounds: 5, clip: 0.05, tied: 3, tau: 2,
					jitter: 50 * time.Microsecond, change: func(c *Config) {
						c.Evaluation = &EvaluationConfig{MicroBatches: 2, Due: func(r uint64) bool { return r%2 == 0 }}
					},
				}
				r.train(t)
				r.compare(t, r.sequential(t))
				if len(r.fakes) != g.stages*pipelines || len(r.losses) != pipelines*10 || len(r.evals) != 3 {
					t.Errorf("%d stages, %d steps, %d evaluations", len(r.fakes), len(r.losses), len(r.evals))
				}
			})
		}
	}
}

func TestDevicesOfSeveralStagesOnTwoNodesComputeTheSameBits(t *testing.T) {
	for name, local := range map[string][2][]int{"interleaved": {{0, 2}, {1, 3}}, "v in halves": {{3, 0}, {1, 2}}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			link := overTCP(t, 3)
			var nodes []*run
			for _, here := range local {
				nodes = append(nodes, &run{
					grid: grids[name].grid, stages: 4, micros: grids[name].micros, pipelines: 2, rounds: 4, clip: 0.05, tied: 3,
					local: here, change: func(c *Config) { c.Connect = link },
				})
			}
			for i, err := range trainBoth(t, nodes...) {
				if err != nil {
					t.Fatalf("node %d: %v", i, err)
				}
				nodes[i].compare(t, nodes[i].sequential(t))
			}
		})
	}
}

func TestTheStagesOfADeviceLiveInOneProcess(t *testing.T) {
	r := &run{grid: grids["v"].grid, stages: 4, micros: 3, pipelines: 1, rounds: 1, local: []int{0, 1}, change: func(c *Config) { c.Connect = inProcess() }}
	if _, err := New(r.config(t)); err == nil || !strings.Contains(err.Error(), "stage 3: it lives on device 0 of the plan with stage 0") {
		t.Errorf("New: %v, want a refusal of half a device", err)
	}
}
