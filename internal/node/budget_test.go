package node_test

import (
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/node/nodetest"
)

// TestTheBudgetIsThatOfAllPipelines: the same file trains on the same samples whatever the number of pipelines, and status says of
// how many.
func TestTheBudgetIsThatOfAllPipelines(t *testing.T) {
	t.Parallel()
	d := nodetest.Start(t, nodetest.StateDir(t))
	source := nodetest.Job(t, d.Dir, "budget", 30) // 60 batches of 4 samples
	for pipelines, steps := range map[string]uint64{"1": 60, "2": 30, "4": 15} {
		id := d.Submit(t, strings.Replace(source, "pipelines: 2", "pipelines: "+pipelines, 1))
		s := d.Until(t, id, "ends", ended)
		if s.State != api.Done || s.Steps != steps || s.Step != steps || s.BudgetSamples != 240 || s.SamplesSeen != 240 || s.Budget != "60 steps of 4 samples" {
			t.Errorf("%s pipelines: %s (%s) at step %d of %d, sample %d of %d (%s); want %d steps, 240 samples", pipelines, s.State, s.Reason, s.Step, s.Steps,
				s.SamplesSeen, s.BudgetSamples, s.Budget, steps)
		}
	}
}

// TestEpochsAreCountedByTheWorker: until it has opened the data, status does not make a number of samples up; after a restart of the
// daemon the number is that of the last committed round.
func TestEpochsAreCountedByTheWorker(t *testing.T) {
	t.Parallel()
	d := nodetest.Start(t, nodetest.StateDir(t))
	source := nodetest.Job(t, d.Dir, "epochs", 1)
	id := d.Submit(t, strings.Replace(source, "steps: 2,", "epochs: 1.5,", 1)) // of agenttest.Epoch, 160
	early := d.Until(t, id, "is known", func(api.JobStatus) bool { return true })
	if early.Budget != "1.5 epochs" || early.BudgetSamples != 0 && early.BudgetSamples != 240 {
		t.Errorf("before the data are open: %d samples of %q", early.BudgetSamples, early.Budget)
	}
	s := d.Until(t, id, "ends", ended)
	if s.State != api.Done || s.Steps != 30 || s.BudgetSamples != 240 || s.SamplesSeen != 240 {
		t.Errorf("%s (%s) at step %d of %d, sample %d of %d; want 30 steps, 240 samples", s.State, s.Reason, s.Step, s.Steps, s.SamplesSeen, s.BudgetSamples)
	}
	d.Stop(t)
	d = nodetest.Start(t, d.Dir)
	if after := d.Until(t, id, "is known", func(api.JobStatus) bool { return true }); after.Steps != 30 || after.BudgetSamples != 240 {
		t.Errorf("after a restart: %d steps, %d samples", after.Steps, after.BudgetSamples)
	}
}

func TestMaxTimeEndsTheJob(t *testing.T) {
	t.Parallel()
	d := nodetest.Start(t, nodetest.StateDir(t))
	source := strings.Replace(nodetest.Job(t, d.Dir, "long", 1e6), "batch: 4", "batch: 4, max_time: 200ms", 1)
	id := d.Submit(t, source)
	s := d.Until(t, id, "ends", ended)
	if s.State != api.Done || !strings.Contains(s.Reason, "max_time") || s.CommittedRound != s.Round || s.Step >= s.Steps {
		t.Errorf("%s at round %d, %d committed: %s", s.State, s.Round, s.CommittedRound, s.Reason)
	}
}
