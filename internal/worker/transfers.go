package worker

import (
	"slices"
	"sync"
	"time"

	"github.com/avgpipe/avgpipe/internal/trace"
	"github.com/avgpipe/avgpipe/internal/wire"
	"github.com/avgpipe/avgpipe/internal/worker/control"
	"github.com/avgpipe/avgpipe/schedule"
)

// recentTransfers is how many messages of a direction are kept, the newest.
const recentTransfers = 64

// promptQuantile is the part of the messages that counts as undisturbed: tuning fits links to as many.
const promptQuantile = 0.25

// transfers observes, from the spans of a worker, how long messages take from one stage to the next: from the end of the op that
// made one to the moment at which the other side has it. That is what tuning predicts of a link, latency and bytes over
// bandwidth, where the receiver waited before the message was made: links keep the order, so no earlier one of its pipeline was on the way.
// Others do not count, nor messages between stages of one device, which cross no link. Those of another host are observed where they arrive: their frames say
// when they were made, which the link tells on this host's clock (wire.Watch).
//
// What a message costs is a lock that almost nobody else wants, and a few words.
type transfers map[way]*direction // without those on which nothing is observed

// way is a direction of a link, which is named by its stage that is nearer the input.
type way struct{ link, direction int }

// The directions of a link.
const (
	down = iota // activations
	up          // gradients
)

// direction is one way between two stages.
type direction struct {
	mu     sync.Mutex
	micros int
	made   []made // by pipeline and micro-batch: its newest message
	recent [recentTransfers]transfer
	next   int // of recent
}

// made says when a message was made.
type made struct {
	step uint64 // plus 1; 0: none was
	at   time.Duration
}

// transfer is a message that arrived.
type transfer struct{ at, took time.Duration }

// newTransfers observes the boundaries between stages on two devices: each direction in the worker that the messages arrive at.
func newTransfers(a control.Assignment, plan schedule.Plan) transfers {
	t := transfers{}
	placement, micros := plan.Placement(), int(a.Spec.Job.MicroBatches)
	for k := range max(len(a.Stages)-1, 0) {
		lower, upper := a.Stages[k].Node == a.Node, a.Stages[k+1].Node == a.Node
		if lower && upper && placement[k] == placement[k+1] {
			continue
		}
		for d, here := range map[int]bool{down: upper, up: lower} {
			if here {
				t[way{k, d}] = &direction{micros: micros, made: make([]made, int(a.Spec.Job.Pipelines)*micros)}
			}
		}
	}
	return t
}

// span takes a span of a stage. The end of an op comes before its message is sent, and the wait for one before the op that takes
// it, so both are in order. It is called from every executor.
func (t transfers) span(e trace.Span) {
	forward := e.Work == schedule.Forward
	if e.Micro < 0 || e.Work >= schedule.BackwardWeight { // it and updates send nothing
		return
	}
	switch {
	case e.Kind == trace.Compute && forward:
		t[way{e.Stage, down}].sent(e.Pipeline, e.Micro, e.Step, e.End)
	case e.Kind == trace.Compute:
		t[way{e.Stage - 1, up}].sent(e.Pipeline, e.Micro, e.Step, e.End)
	case e.Kind == trace.WaitUpstream && forward:
		t[way{e.Stage - 1, down}].arrived(e)
	case e.Kind == trace.WaitDownstream && !forward:
		t[way{e.Stage, up}].arrived(e)
	}
}

// frame takes what a link from another host says of a frame: when it was sent. It comes before the wait for it has ended.
func (t transfers) frame(h wire.Header, at time.Duration) {
	switch h.Kind { //nolint:exhaustive // others are no messages of micro-batches in training
	case wire.Activation:
		t[way{h.From, down}].sent(h.Pipeline, h.Micro, h.Step, at)
	case wire.Gradient:
		t[way{h.To, up}].sent(h.Pipeline, h.Micro, h.Step, at)
	}
}

// sent notes when a message was made. A frame from another host may name what the job does not have.
func (d *direction) sent(pipeline, micro int, step uint64, at time.Duration) {
	if d == nil || micro < 0 || micro >= d.micros || pipeline*d.micros >= len(d.made) {
		return
	}
	d.mu.Lock()
	d.made[pipeline*d.micros+micro] = made{step + 1, at}
	d.mu.Unlock()
}

// arrived notes the wait for a message, unless it was made before anybody waited.
func (d *direction) arrived(e trace.Span) {
	if d == nil {
		return
	}
	d.mu.Lock()
	m := d.made[e.Pipeline*d.micros+e.Micro]
	if m.step == e.Step+1 && e.Start <= m.at && m.at < e.End {
		d.recent[d.next] = transfer{e.End, e.End - m.at}
		d.next = (d.next + 1) % recentTransfers
	}
	d.mu.Unlock()
}

// seconds is what an undisturbed message took in the window that ends at now; nil where none was waited for.
func (d *direction) seconds(now time.Duration) *float64 {
	if d == nil {
		return nil
	}
	var took []time.Duration
	d.mu.Lock()
	for _, t := range d.recent {
		if t.took > 0 && t.at > now-window {
			took = append(took, t.took)
		}
	}
	d.mu.Unlock()
	if len(took) == 0 {
		return nil
	}
	slices.Sort(took)
	prompt := took[int(promptQuantile*float64(len(took)-1))].Seconds()
	return &prompt
}
