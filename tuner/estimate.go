package tuner

import (
	"fmt"

	"github.com/avgpipe/avgpipe/internal/words"
)

// leastTuningSeconds is what any job may be measured for, whatever its share of that would be.
const leastTuningSeconds = 2

// Estimate is what a job is expected to take.
type Estimate struct {
	JobSeconds    float64 `json:"job_seconds"`    // of training, the whole budget; 0 while nobody knows how many samples that is
	TuningSeconds float64 `json:"tuning_seconds"` // of measuring everything first; 0 where an earlier tuning is at hand
	Basis         string  `json:"basis"`          // what it rests on, for people
}

// Affordable reports whether a tuning that takes so long keeps to its share of the job's time; a share of 0 is no bound.
func (e *Estimate) Affordable(share, seconds float64) bool {
	return share == 0 || seconds <= max(leastTuningSeconds, share*e.JobSeconds)
}

// TooDear says why a job is not measured; empty when it is.
func (e *Estimate) TooDear(share float64) string {
	if e.Affordable(share, e.TuningSeconds) {
		return ""
	}
	return fmt.Sprintf("tuning would have cost about %s for a job of about %s, of which it may take %.3g%% (tuning_share); chosen by the rules",
		words.Seconds(e.TuningSeconds), words.Seconds(e.JobSeconds), 100*share)
}
