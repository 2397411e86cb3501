package worker

import (
	"testing"
	"time"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/spec"
	"github.com/avgpipe/avgpipe/internal/worker/control"
	"github.com/avgpipe/avgpipe/job"
)

// TestStepsOfAWorkerWithoutTheLastStage follow from its rounds: the coordinator must see that all steps are done.
func TestStepsOfAWorkerWithoutTheLastStage(t *testing.T) {
	a := control.Assignment{
		Node: "a", Stages: []control.StagePlace{{Node: "a"}, {Node: "b"}},
		Spec: spec.Spec{Job: job.Job{Pipelines: 2, Averaging: job.Averaging{Tau: 3}, Train: job.Train{Batch: 4}}},
	}
	p := newProgress(a, nil)
	p.round(0, 5)
	var s api.JobStatus
	p.fill(&s, 0, time.Now())
	if s.Round != 5 || s.Step != 15 || s.SamplesSeen != 2*15*4 {
		t.Errorf("round %d, step %d, %d samples; want 5, 15, 120", s.Round, s.Step, s.SamplesSeen)
	}
}
