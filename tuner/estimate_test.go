package tuner

import "testing"

func TestATuningKeepsToItsShareOfTheJob(t *testing.T) {
	for _, c := range []struct {
		job, tuning, share float64
		want               string
	}{
		{2, 40, 0.1, "tuning would have cost about 40s for a job of about 2s, of which it may take 10% (tuning_share); chosen by the rules"},
		{2, 40, 0, ""},     // no bound
		{2, 2, 0.1, ""},    // so much is allowed in any case
		{400, 40, 0.1, ""}, // a tenth
		{400, 41, 0.1, "tuning would have cost about 41s for a job of about 6m40s, of which it may take 10% (tuning_share); chosen by the rules"},
	} {
		e := Estimate{JobSeconds: c.job, TuningSeconds: c.tuning}
		if got := e.TooDear(c.share); got != c.want {
			t.Errorf("%+v: %q", c, got)
		}
	}
}
