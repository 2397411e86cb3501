// Package wire carries frames between the stages of a pipeline: a channel inside one process, TCP between nodes.
package wire

import "context"

// Kind says what a frame carries.
type Kind uint8

// The kinds of frame.
const (
	Activation Kind = iota + 1 // forward: a micro-batch's boundary activations
	Gradient                   // backward: their gradients
	Norm                       // forward: the running squared gradient norm; backward: the total. One float64
	Tied                       // the gradient of a tied parameter, between the first and the last stage
	Evaluation                 // forward: boundary activations of an evaluation
)

// Header identifies a frame. Receivers check every field: a frame of another generation, step or micro-batch than the plan
// expects is an error, never data.
type Header struct {
	Kind       Kind
	Generation uint64
	Pipeline   int
	From, To   int // stages, 0-based
	Step       uint64
	Micro      int
}

// Frame is a header and its payload. The payload belongs to the holder of the frame until Release.
type Frame struct {
	Header
	Payload []byte // aligned to 64 bytes
	release func([]byte)
}

// Release gives the payload's memory back for reuse. The payload must not be touched afterwards.
func (f *Frame) Release() {
	if f.release != nil {
		f.release(f.Payload)
	}
	f.Payload, f.release = nil, nil
}

// End is one stage's end of the link to a neighbouring stage of its pipeline. Send and Receive may run concurrently with each
// other, each from one goroutine at a time.
type End interface {
	// NewFrame returns a frame with a payload of n bytes from the link's pool, to be filled and sent.
	NewFrame(h Header, n int) Frame
	// Send queues a frame and takes over its payload. It blocks only while the queue is full (its depth is the plan's
	// peak of frames in flight, so a checked plan never blocks), until ctx ends or the link fails.
	Send(ctx context.Context, f Frame) error
	// Receive returns the next frame in the order they were sent, and fails when ctx ends or the link does.
	Receive(ctx context.Context) (Frame, error)
	// Close fails both directions with cause, at once, and frees what the link holds. Safe to call more than once.
	Close(cause error) error
}
