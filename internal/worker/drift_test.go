package worker

import (
	"testing"

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
