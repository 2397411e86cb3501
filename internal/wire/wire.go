package wire

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/avgpipe/avgpipe/internal/trace"
	"github.com/avgpipe/avgpipe/schedule"
	"github.com/avgpipe/avgpipe/stage/device"
)

// Kind says what a frame carries.
type Kind uint8

// The kinds of frame.
const (
	Activation Kind = iota + 1 // forward: a micro-batch's boundary activations
	Gradient                   // backward: their gradients
	Norm                       // forward: the running squared gradient norm; backward: the total. One float64
	Tied                       // the gradient of a tied parameter, between the first and the last stage
	Evaluation                 // forward: boundary activations of an evaluation
	closing                    // the last frame of a TCP link: why it ends
	opening                    // the first frame of the dialling end: see hello
	answering                  // that of the listening end: see reply
	Message                    // what a pipeline hands to the copies of its stage's center elsewhere; Step is the round
	probing                    // asks whether the other end is alive: see Watch
	echoing                    // answers that
	offering                   // agrees on what carries the frames: see Paths
)

var kindNames = [...]string{
	Activation: "activation", Gradient: "gradient", Norm: "norm", Tied: "tied gradient", Evaluation: "evaluation", Message: "averaging message",
	closing: "closing", opening: "hello", answering: "reply", probing: "probe", echoing: "answer to a probe",
	offering: "offer of a path",
}

// String names the kind in messages.
func (k Kind) String() string { return nameOf("kind", int(k), kindNames[:]) }

func nameOf(what string, i int, names []string) string {
	if i > 0 && i < len(names) {
		return names[i]
	}
	return fmt.Sprintf("%s %d", what, i)
}

// Header identifies a frame. Receivers check every field: a frame of another generation, step or micro-batch than the plan
// expects is an error, never data.
type Header struct {
	Kind       Kind
	Generation uint64
	Pipeline   int
	From, To   int // stages, 0-based
	Step       uint64
	Micro      int // -1 when the frame is not of one micro-batch
}

// String describes the frame in messages.
func (h Header) String() string {
	return fmt.Sprintf("%v of pipeline %d, stage %d -> %d, generation %d, step %d, micro-batch %d",
		h.Kind, h.Pipeline, h.From, h.To, h.Generation, h.Step, h.Micro)
}

// sent is the span of a frame that was on its way from start until now.
func (h Header) sent(start time.Duration) trace.Span {
	e := trace.Span{Start: start, End: trace.Now(), Kind: trace.Send, Pipeline: h.Pipeline, Stage: h.From, Micro: h.Micro, Step: h.Step}
	if h.Kind == Gradient {
		e.Work = schedule.Backward
	}
	return e
}

// Frame is a header and its payload. The payload belongs to the holder of the frame until Release. Only one copy of a
// Frame may be released.
type Frame struct {
	Header
	Payload []byte        // aligned to 64 bytes
	Memory  device.Mem    // of a device, instead of Payload; only inside one process
	sentAt  time.Duration // when Send took it, on the clock of trace.Now; only on its way to another node
	release func(Frame)
}

// Lend returns a frame that carries memory of a device. Its Release calls release.
func Lend(h Header, m device.Mem, release func(Frame)) Frame {
	return Frame{Header: h, Memory: m, release: release}
}

// Release gives the payload's memory back for reuse. The payload must not be touched afterwards.
func (f *Frame) Release() {
	if f.release != nil {
		f.release(*f)
	}
	f.Payload, f.Memory, f.release = nil, device.Mem{}, nil
}

// End is one stage's end of the link to a neighbouring stage of its pipeline. Send and Receive may run concurrently with each
// other, each from one goroutine at a time (TryReceive counts as Receive); the rest from any goroutine at any time.
type End interface {
	// NewFrame returns a frame with a payload of n bytes from the link's pool, to be filled and sent. The payload's
	// contents are whatever was there.
	NewFrame(h Header, n int) Frame
	// Send queues a frame and takes over its payload, also when it fails. It blocks only while the queue is full (its
	// depth is the plan's peak of frames in flight, so a checked plan never blocks), until ctx ends or the link does.
	// A frame of another generation than the link's is refused with ErrStale and does not harm the link.
	Send(ctx context.Context, f Frame) error
	// Receive returns the next frame in the order they were sent, and fails when ctx ends or the link does.
	Receive(ctx context.Context) (Frame, error)
	// TryReceive is Receive without waiting: false when nothing has arrived.
	TryReceive() (Frame, bool, error)
	// OnArrival has f called after each frame that arrives here and once the link has ended, on a goroutine of the link or
	// the one that sends: f must not block. It is set once, before frames are awaited; if something may have arrived
	// before, f is called at once.
	OnArrival(f func())
	// Close ends the link in both directions and returns when its goroutines have ended. With a cause it fails
	// both ends at once: pending and later calls return an error that wraps the cause (on the other node: one with its
	// text), and frames on the way are lost. With nil it ends in order: the frames already sent can still be
	// received, then both ends return ErrClosed. The first call decides; later ones only wait.
	Close(cause error) error
}

// Purpose says what a link is for: each pipeline has one link per purpose between two stages.
type Purpose uint8

// The purposes of a link.
const (
	Training  Purpose = iota + 1 // activations, gradients and norms, between neighbours
	Ties                         // gradients of tied parameters, between the first and the last stage
	Evaluated                    // evaluation forwards, between neighbours
	Averaged                     // averaging messages of one stage, which is both ends', to the process of another group of pipelines
)

// String names the purpose in messages.
func (p Purpose) String() string {
	return nameOf("purpose", int(p), []string{Training: "training", Ties: "ties", Evaluated: "evaluation", Averaged: "averaging"})
}

// Link names a link. Lower is the stage nearer the input; by convention its node dials and the other listens.
type Link struct {
	Purpose  Purpose
	Pipeline int
	Lower    int // stage, 0-based
	Upper    int
}

// String describes the link in messages.
func (l Link) String() string {
	return fmt.Sprintf("%v link of pipeline %d, stages %d and %d", l.Purpose, l.Pipeline, l.Lower, l.Upper)
}

// header is that of a frame which belongs to no step.
func (l Link) header(kind Kind, generation uint64) Header {
	return Header{Kind: kind, Generation: generation, Pipeline: l.Pipeline, From: l.Lower, To: l.Upper, Micro: -1}
}

// link is that which a hello asks for.
func (h Header) link(p Purpose) Link {
	return Link{Purpose: p, Pipeline: h.Pipeline, Lower: h.From, Upper: h.To}
}

// Spec sizes one link. Both ends must use the same values.
type Spec struct {
	Generation uint64
	Depth      int // frames in flight per direction that Send accepts without blocking; at least 1
	MaxBytes   int // the longest payload; a longer one is refused before memory is taken
	// Down and Up, unless nil, carry the frames toward the upper and the lower stage. Those of a Line arrive as late as it says, after
	// the frames of other links that share it; over TCP that is on top of what the network takes, and each end only looks at the line
	// toward it. A Mover is of one link inside one process. Both ends of such a link must be closed before what carries its frames.
	Down, Up Carrier
	// Memory, unless nil, makes the memory of payloads: n bytes aligned to 64, or nil when it has no more. It is not given back.
	Memory func(n int) []byte
	// Watch, unless nil, watches the other end of a link over TCP, from this one.
	Watch *Watch
	timed bool // the other end of a link over TCP takes headers that say when their frame was sent
	// Trace hears of each frame that a link moved between nodes, or along a line (trace.Send). A link inside one process
	// without a line moves nothing and stays silent.
	Trace trace.Listener
}

// Validate reports the first unusable field.
func (s Spec) Validate() error {
	if s.Depth < 1 {
		return fmt.Errorf("link: depth is %d: at least 1 frame must fit", s.Depth)
	}
	if s.MaxBytes < 1 || s.MaxBytes > maxPayload {
		return fmt.Errorf("link: longest payload is %d bytes: want 1 to %d", s.MaxBytes, maxPayload)
	}
	return nil
}

// ErrClosed is what an end returns after its link was closed without a cause.
var ErrClosed = errors.New("link closed")

// ErrStale is wrapped by the errors about a frame or a handshake of another generation.
var ErrStale = errors.New("refused")

func stale(what string, have, found uint64) error {
	return fmt.Errorf("%s is of generation %d, this link of %d: %w", what, found, have, ErrStale)
}
