package node

import (
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/cluster"
	"github.com/avgpipe/avgpipe/internal/worker/control"
)

// TestEndedJobsShowWhatWasKept: the coordinator may have published the status of before the last evaluation when the end is agreed on.
func TestEndedJobsShowWhatWasKept(t *testing.T) {
	t.Parallel()
	j := &cluster.Job{ID: "1", Generation: 2}
	before, after := &control.Status{Generation: 2}, &control.Status{Generation: 2}
	older := &control.Status{Generation: 1} // of the worker before
	for name, c := range map[string]struct{ published, kept, want *control.Status }{
		"published a tick early":      {before, after, after},
		"the daemon was started anew": {nil, after, after},
		"nothing could be kept":       {before, nil, before},
		"kept of an earlier worker":   {before, older, before},
		"only an earlier worker":      {nil, older, older},
		"never started":               {nil, nil, nil},
	} {
		if got := lastOf(j, c.published, c.kept); got != c.want {
			t.Errorf("%s: %p, want %p", name, got, c.want)
		}
	}
}

// TestAStaleEvaluationIsNotTheLast: without the status that a job's worker gave last, what its last round says of an earlier evaluation
// is not shown as the result.
func TestAStaleEvaluationIsNotTheLast(t *testing.T) {
	loss := 2.5
	stale := api.JobStatus{CommittedRound: 12, EvalRound: 10, EvalLoss: &loss, Metrics: api.Metrics{Perplexity: &loss}}
	dropStale(&stale)
	if stale.EvalLoss != nil || stale.Perplexity != nil || stale.EvalRound != 0 {
		t.Errorf("%+v", stale)
	}
	last := api.JobStatus{CommittedRound: 12, EvalRound: 12, EvalLoss: &loss}
	if dropStale(&last); last.EvalLoss == nil {
		t.Errorf("%+v", last)
	}
}

// TestACancellingJobIsNotSaidToRun where somebody wants to resume it.
func TestACancellingJobIsNotSaidToRun(t *testing.T) {
	for _, c := range []struct {
		job   cluster.Job
		waits bool
		says  string
	}{
		{cluster.Job{State: cluster.Running, Cancelling: true}, false, "being cancelled"},
		{cluster.Job{State: cluster.Starting, Cancelling: true}, true, "being cancelled"},
		{cluster.Job{State: cluster.Running}, false, "it is running; only"},
		{cluster.Job{State: cluster.Starting}, true, ""},
		{cluster.Job{State: cluster.Cancelled, Cancelling: true}, false, ""},
	} {
		if got := notResumable(&c.job, c.waits); c.says == "" && got != "" || !strings.Contains(got, c.says) {
			t.Errorf("%+v: %q, want %q", c.job, got, c.says)
		}
	}
}
