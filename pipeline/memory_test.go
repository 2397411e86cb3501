package pipeline

import (
	"runtime"
	"testing"

	"github.com/avgpipe/avgpipe/stage"
	"github.com/avgpipe/avgpipe/stage/flat"
)

// wide is a stage with large boundaries that computes nothing.
type wide struct{ *fake }

const wideBytes = 1 << 20

func (w wide) Shape() stage.Shape {
	s := w.fake.Shape()
	s.InputBytes, s.OutputBytes = wideBytes, wideBytes
	return s
}

func (wide) Forward(stage.Micro, stage.Boundary, []byte, stage.Boundary) error { return nil }

func (wide) Backward(stage.Micro, stage.Part, stage.Boundary, stage.Boundary) error {
	return nil
}

func (wide) Evaluate(flat.Vector, []byte, []byte, []byte) (stage.Score, error) {
	return stage.Score{Targets: 1}, nil
}

// nothing is a Source that leaves buffers as they are.
type nothing struct{}

func (nothing) Fill(uint64, int, []byte, []byte) error { return nil }

// allocated trains r with wide stages and says what a step allocates once warm steps have filled the pools. r has at least two
// rounds more, of a batch each.
func allocated(t *testing.T, r *run, warm uint64) (mallocs, bytes float64) {
	t.Helper()
	var before, after runtime.MemStats
	last := r.rounds - 1
	r.change = func(c *Config) {
		for k := range c.Stages {
			build := c.Stages[k].Build
			c.Stages[k].Build = func(p int) (stage.Stage, error) {
				s, err := build(p)
				return wide{s.(*fake)}, err
			}
			c.Stages[k].Source = func(int) Source { return nothing{} }
		}
		c.Events.OnStep = func(s StepReport) {
			switch s.Step {
			case warm:
				runtime.ReadMemStats(&before)
			case last:
				runtime.ReadMemStats(&after)
			}
		}
	}
	r.train(t)
	steps := float64(last - warm)
	return float64(after.Mallocs-before.Mallocs) / steps, float64(after.TotalAlloc-before.TotalAlloc) / steps
}

func TestSteadyStateAllocatesNoBoundaries(t *testing.T) {
	_, bytes := allocated(t, &run{schedule: "afp", stages: 3, pipelines: 1, micros: 4, rounds: 60, clip: 0.05}, 10)
	if bytes > wideBytes/4 {
		t.Errorf("%.0f bytes are allocated per step; a boundary has %d, and 16 cross in a step", bytes, wideBytes)
	}
}
