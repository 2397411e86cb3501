package coordinator

import (
	"fmt"
	"time"

	"github.com/avgpipe/avgpipe/internal/api"
)

// tuningView is what is known of the job's tune process.
type tuningView struct {
	live    bool
	silent  time.Duration // since it last said something; time in which this daemon was stopped does not count
	bound   time.Duration // how long it may be silent
	text    string        // how far it is
	chosen  bool          // it has ended with a report
	failure string        // it has ended and says what of the job does not let it choose
	cause   string        // it has ended for another reason
}

// decideTuning looks after a job whose counts are being measured. Nothing of a tuning outlives its process or its daemon: it
// begins again.
func decideTuning(w snapshot, j *jobView) decision {
	t := j.tuning
	if t.live {
		switch why := stopReason(w, j); {
		case why != "":
			return decision{choice: killTune, reason: why + " before the job was tuned"}
		case t.silent > t.bound:
			return decision{choice: killTune, reason: fmt.Sprintf("the tuning has said nothing for %v, which is more than it may, %v; it was at: %s",
				t.silent.Round(time.Second), t.bound.Round(time.Second), t.text)}
		}
		return decision{reason: t.text}
	}
	switch {
	case j.cancelled:
		return decision{choice: endJob, state: api.Cancelled, reason: "cancelled before it was tuned"}
	case w.stopping:
		return decision{reason: "the daemon is stopping; the tuning begins again with the next one"}
	case t.chosen:
		return decision{choice: resolve, reason: "tuned"}
	case t.failure != "":
		return decision{choice: endJob, state: api.Failed, reason: t.failure}
	case j.deaths >= w.limits.RetryLimit:
		return decision{choice: endJob, state: api.Failed, reason: fmt.Sprintf(
			"%d tunings ended without a choice, the last one so: %s", j.deaths, t.cause)}
	case w.now.Before(j.retryAt):
		return decision{reason: fmt.Sprintf("tuning again, %d of %d, in %v: %s",
			j.deaths, w.limits.RetryLimit-1, j.retryAt.Sub(w.now).Round(time.Millisecond), t.cause)}
	case t.cause == "":
		return decision{choice: tune, reason: "the daemon was restarted; tuning again"}
	}
	return decision{choice: tune, reason: "tuning again: " + t.cause}
}
