package worker

import (
	"fmt"
	"sync"
	"time"

	"github.com/avgpipe/avgpipe/internal/words"
	"github.com/avgpipe/avgpipe/internal/worker/control"
	"github.com/avgpipe/avgpipe/pipeline"
)

// The least time between two notes of a stage's drift: twice as long after each, up to the longest, and short again once nothing has changed for that long. A bound near to what pipelines move
// within a round is crossed in every other one.
const (
	firstDriftPause   = time.Second
	longestDriftPause = 10 * time.Minute
)

// driftNotes decides which changes of rounds are told.
type driftNotes struct {
	mu     sync.Mutex // each stage has an executor of its own
	stages map[int]*driftPause
}

// driftPause is what one stage has told.
type driftPause struct {
	pause time.Duration
	next  time.Time // nothing is told before
	left  int       // changes that were not told since the last one that was
}

// due reports whether a change is told, and how many before it were not.
func (n *driftNotes) due(stage int, now time.Time) (left int, told bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.stages == nil {
		n.stages = map[int]*driftPause{}
	}
	at := n.stages[stage]
	switch {
	case at == nil:
		at = &driftPause{pause: firstDriftPause}
		n.stages[stage] = at
	case now.Before(at.next):
		at.left++
		return 0, false
	case now.Sub(at.next) > at.pause:
		at.pause = firstDriftPause
	default:
		at.pause = min(2*at.pause, longestDriftPause)
	}
	left, at.left = at.left, 0
	at.next = now.Add(at.pause)
	return left, true
}

// drifted notes that rounds of a stage are synchronous from now on, or no longer. Status says so each time, the log not always.
func (t *trainer) drifted(r pipeline.DriftReport) {
	t.progress.synchronize(r.Stage, r.Synchronous)
	left, told := t.drifts.due(r.Stage, time.Now())
	if !told {
		return
	}
	note := driftNote(r, t.assignment.Spec.Job.Averaging.MaxDrift, left)
	t.events.Append(control.Event{Kind: control.Note, Round: r.Round, Text: note})
	t.log.Warn(note)
}

// driftNote says why rounds change, and how many changes before were not told.
func driftNote(r pipeline.DriftReport, most float64, left int) string {
	found := fmt.Sprintf("round %d: the pipelines of stage %d were %s of the length of its weights from the center", r.Round, r.Stage, words.Percent(r.Drift))
	if r.Synchronous {
		found = fmt.Sprintf("%s, beyond averaging.max_drift of %s: its rounds are synchronous until they move at most half of that within one", found, words.Percent(most))
	} else {
		found = fmt.Sprintf("%s, at most half of averaging.max_drift of %s: its rounds are no longer synchronous", found, words.Percent(most))
	}
	if left > 0 {
		found += fmt.Sprintf("; they have changed %s more since the last such line: a larger max_drift is crossed less often", words.Count(left, "time"))
	}
	return found
}
