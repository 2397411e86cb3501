package main

import (
	"testing"

	"github.com/avgpipe/avgpipe/internal/api"
)

// ended is how a job ended of whose pipelines, each a group of its own, so many went on; of three, a round is 12 samples.
func ended(pipelines, stages int, samples uint64, loss *float64) *outcome {
	first := 5.5
	return &outcome{model: "m", pipelines: pipelines, status: api.JobStatus{
		Stages: stages, Groups: pipelines, SamplesSeen: samples, Step: 800, CommittedRound: 800, EvalLoss: loss, Loss: loss, InitialLoss: &first,
	}}
}

// TestWhatIsExpectedFollowsFromHowAJobEnded, and each expectation refuses what it is for.
func TestWhatIsExpectedFollowsFromHowAJobEnded(t *testing.T) {
	loss, noise, forgot := 0.41, 0.45, 0.54
	undisturbed, k := ended(3, 2, 9600, &loss), &kind{rounds: 800}
	other := ended(3, 2, 9600, &loss)
	other.model = "other"
	early := ended(3, 1, 9600, &loss)
	early.status.Step--
	cases := map[string]struct {
		got   *outcome
		as    expectation
		holds bool
	}{
		"nothing":                      {ended(3, 2, 9600, &loss), sameBits, true},
		"other bits":                   {other, sameBits, false},
		"other samples":                {ended(3, 2, 9588, &loss), sameBits, false},
		"fewer stages":                 {ended(3, 1, 9600, &loss), fewerStages, true},
		"fewer stages and steps":       {early, fewerStages, false},
		"fewer groups":                 {ended(2, 2, 9600, &noise), fewerGroups, true},
		"a round that ends after it":   {ended(2, 2, 9604, &loss), fewerGroups, true},
		"a sample too few":             {ended(2, 2, 9599, &loss), fewerGroups, false},
		"a round too many":             {ended(2, 2, 9612, &loss), fewerGroups, false},
		"what it learned is lost":      {ended(2, 2, 9600, &forgot), fewerGroups, false},
		"nobody knows what it learned": {ended(2, 2, 9600, nil), fewerGroups, false},
	}
	for name, c := range cases {
		as := c.got.expected(undisturbed)
		if as.name != c.as.name {
			t.Errorf("%s: expected is %s, want %s", name, as.name, c.as.name)
		}
		if problem := as.holds(c.got, undisturbed, k); (problem == "") != c.holds {
			t.Errorf("%s: %q", name, problem)
		}
	}
}
