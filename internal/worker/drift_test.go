package worker

import (
	"testing"

	"github.com/avgpipe/avgpipe/job"
	"github.com/avgpipe/avgpipe/pipeline"
)

func TestNotesOfDriftSayHowFarPipelinesWereAndWhatFollows(t *testing.T) {
	for _, c := range []struct {
		report pipeline.DriftReport
		want   string
	}{
		{
			pipeline.DriftReport{Stage: 1, Round: 8, Drift: 0.123, Synchronous: true},
			"round 8: the pipelines of stage 1 were 12% of the length of its weights from the center, beyond averaging.max_drift of 10%: its rounds are synchronous until they move at most half of that within one",
		},
		{
			pipeline.DriftReport{Stage: 0, Round: 20, Drift: 0.0312},
			"round 20: the pipelines of stage 0 were 3.1% of the length of its weights from the center, at most half of averaging.max_drift of 10%: its rounds are no longer synchronous",
		},
	} {
		if got := driftNote(c.report, 0.1); got != c.want {
			t.Errorf("got  %s\nwant %s", got, c.want)
		}
	}
}

// TestASinglePipelineHasNoSynchronousRounds, also where it goes on from a round of pipelines that were too far apart: status says what it does, not what they would do next.
func TestASinglePipelineHasNoSynchronousRounds(t *testing.T) {
	a := setup(t, 1, 2, func(j *job.Job) { j.Averaging.MaxDrift = 1e-6 })
	o := train(t, a, nil)
	if all := o.status.Progress.StageStatus; len(all) != 1 || !all[0].Synchronous {
		t.Fatalf("two pipelines with a bound that is next to nothing: %+v (%v)", all, o.err)
	}
	a.Generation, a.Restore = 2, restoreOf(o)
	a.Spec.Job.Pipelines, a.Spec.Budget.Steps, a.Spec.Budget.Samples = 1, 2*a.Spec.Budget.Steps, 2*a.Spec.Budget.Samples
	again := train(t, a, nil)
	if all := again.status.Progress.StageStatus; again.round != 24 || len(all) != 1 || all[0].Synchronous {
		t.Errorf("one that goes on, at round %d: %+v (%v)", again.round, all, again.err)
	}
}
