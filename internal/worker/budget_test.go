package worker

import (
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/internal/cluster"
	"github.com/avgpipe/avgpipe/job"
	"github.com/avgpipe/avgpipe/schedule"
)

// TestARoundOfTwiceTheBudgetIsNotTrained where only who reads the data knows how many samples an epoch has, but by a job that goes on: with more pipelines than its file has, rounds may be longer.
func TestARoundOfTwiceTheBudgetIsNotTrained(t *testing.T) {
	a := setup(t, 1, 2, func(j *job.Job) {
		j.Train.Steps, j.Train.Epochs = 0, 0.001
		j.Averaging.Tau = 32
	})
	a.Spec.Budget = nil
	plan, err := schedule.Parse(strings.Join(a.Plan, "\n"))
	if err != nil {
		t.Fatal(err)
	}
	h := &host{assignment: a, plan: plan}
	if err := h.openModel(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := h.openData(t.Context()); err != nil {
		t.Fatal(err)
	}
	err = h.resolveBudget(t.Context())
	if !Permanent(err) || !strings.Contains(err.Error(), "averaging.tau is 32, so a round takes 256 samples, more than all of the budget (0.001 epochs)") || !strings.Contains(err.Error(), "the nearest that fits: 1") {
		t.Errorf("%v (permanent: %v)", err, Permanent(err))
	}
	h.assignment.Restore = &cluster.Manifest{}
	if err := h.resolveBudget(t.Context()); err != nil || h.budget.Samples != 256 {
		t.Errorf("a job that goes on: %v, %+v", err, h.budget)
	}
	h.assignment.Restore = nil
	if err := h.close(); err != nil {
		t.Error(err)
	}
}
