package worker

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"

	"github.com/avgpipe/avgpipe/internal/worker/control"
	"github.com/avgpipe/avgpipe/job"
	"github.com/avgpipe/avgpipe/pipeline"
	"github.com/avgpipe/avgpipe/schedule"
)

func TestNotesOfDriftSayHowFarPipelinesWereAndWhatFollows(t *testing.T) {
	for _, c := range []struct {
		report pipeline.DriftReport
		left   int
		want   string
	}{
		{
			pipeline.DriftReport{Stage: 1, Round: 8, Drift: 0.123, Synchronous: true},
			0,
			"round 8: the pipelines of stage 1 were 12% of the length of its weights from the center, beyond averaging.max_drift of 10%: its rounds are synchronous until they move at most half of that within one",
		},
		{
			pipeline.DriftReport{Stage: 0, Round: 20, Drift: 0.0312},
			7,
			"round 20: the pipelines of stage 0 were 3.1% of the length of its weights from the center, at most half of averaging.max_drift of 10%: its rounds are no longer synchronous" +
				"; they have changed 7 times more since the last such line: a larger max_drift is crossed less often",
		},
	} {
		if got := driftNote(c.report, 0.1, c.left); got != c.want {
			t.Errorf("got  %s\nwant %s", got, c.want)
		}
	}
}

// TestChangesOfDriftAreToldEverMoreRarely while they go on, stage by stage, and at once again after a time without. Status says each.
func TestChangesOfDriftAreToldEverMoreRarely(t *testing.T) {
	a := setup(t, 2, 2, func(j *job.Job) { j.Averaging.MaxDrift = 0.1 })
	plan, err := schedule.Parse(strings.Join(a.Plan, "\n"))
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		tr, seen := newTrainer(a, plan, zap.NewNop()), uint64(0)
		told := func() (notes []control.Event) {
			tr.events.Append(control.Event{}) // that there is one to wait for
			notes, err := tr.events.After(t.Context(), seen)
			if err != nil {
				t.Fatal(err)
			}
			seen += uint64(len(notes))
			return notes[:len(notes)-1]
		}
		changes := func(n int, every time.Duration) {
			for i := range n {
				for stage := range 2 {
					tr.drifted(pipeline.DriftReport{Stage: stage, Round: uint64(i), Drift: 0.2, Synchronous: i%2 == 0}) //nolint:gosec // not negative
				}
				time.Sleep(every)
			}
		}
		changes(36001, 100*time.Millisecond)
		notes := told()
		if n := len(notes); n != 2*15 { // of an hour: at 0, 1, 3, 7, ..., 1023 s, and every 600 s from there
			t.Errorf("%d notes", n)
		}
		if last := notes[len(notes)-1]; last.Kind != control.Note || !strings.Contains(last.Text, "changed 5999 times more") {
			t.Errorf("the last one: %+v", last)
		}
		if !tr.progress.synchronous[0] {
			t.Error("status does not have the last change")
		}
		time.Sleep(2 * longestDriftPause)
		changes(1, 0)
		time.Sleep(2 * time.Second)
		changes(1, 0)
		if notes := told(); len(notes) != 4 {
			t.Errorf("after a pause %d notes", len(notes))
		}
	})
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
