package job

import "testing"

// TestTheBudgetDoesNotDependOnThePipelines: whatever number is chosen, together they consume what the file asks for, rounded up to
// whole rounds, and the learning rate has risen after the same number of samples.
func TestTheBudgetDoesNotDependOnThePipelines(t *testing.T) {
	for _, c := range []struct {
		name      string
		train     Train
		pipelines Count
		tau       int
		want      Budget
	}{
		{"steps of one pipeline", Train{Steps: 1000}, 1, 1, Budget{16000, 1000, 100, 40}},
		{"steps of two", Train{Steps: 1000}, 2, 1, Budget{16000, 500, 50, 20}},
		{"steps of three, rounded up", Train{Steps: 1000}, 3, 1, Budget{16032, 334, 34, 14}},
		{"whole rounds", Train{Steps: 1000}, 3, 4, Budget{16128, 336, 34, 14}},
		{"fewer steps than pipelines", Train{Steps: 1}, 4, 8, Budget{512, 8, 25, 10}},
		{"samples", Train{Samples: 15999}, 2, 1, Budget{16000, 500, 50, 20}},
		{"tokens", Train{Tokens: 32*16000 - 31}, 2, 1, Budget{16000, 500, 50, 20}},
		{"epochs", Train{Epochs: 1.5}, 2, 1, Budget{1504, 47, 50, 20}},
	} {
		j := Default()
		j.Train, j.Pipelines, j.Averaging.Tau, j.Data.Sequence = c.train, c.pipelines, c.tau, 32
		j.Train.Batch, j.Optimizer.Warmup, j.Optimizer.T0 = 16, 100, 40
		if got := j.Resolved(1001); got == nil || *got != c.want {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
	}
}

func TestABudgetMayNotBeKnownYet(t *testing.T) {
	j := Default()
	j.Train.Batch, j.Train.Epochs, j.Pipelines = 16, 2, 2
	if got := j.Resolved(0); got != nil {
		t.Errorf("epochs of unknown length make %+v", got)
	}
	j.Train.Epochs, j.Train.Tokens = 0, 1000
	if got := j.Resolved(1001); got != nil {
		t.Errorf("tokens in samples of unknown length make %+v", got)
	}
	j.Train.Tokens, j.Train.Steps, j.Pipelines = 0, 1000, Auto
	if got := j.Resolved(1001); got != nil || j.Wanted(0) != 16000 {
		t.Errorf("steps of unknown pipelines make %+v of %d samples", got, j.Wanted(0))
	}
}
