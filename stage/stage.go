package stage

import (
	"fmt"

	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/flat"
)

// Micro names one micro-batch of one batch of one pipeline.
type Micro struct {
	Step   uint64  // the pipeline's optimizer step, counted from 0; keys whatever is random
	Index  int     // the micro-batch within the batch, 0..M-1; those of several batches may be in flight at once
	Weight float32 // its share of the batch: on the last stage of the targets that count, else of the samples
	// Version of the weights that its passes read: 0 for those at the beginning of the plan, else the Hyper.Version of the step
	// that made them. It is the same in all passes of the micro-batch. Where a plan steps within the batch, Weight is the share
	// of the samples of one step.
	Version int
	// Last says that the micro-batch's backward is the last before a step: it makes gradients final.
	Last bool
	// Squares says that the squared norm of the gradients is to be kept as this backward leaves it, for Stage.Squares. It is of the first micro-batch of a batch whose half is run.
	Squares bool
}

// CountTargets is how many targets in a labels buffer count: those that are not -1.
func CountTargets(labels []byte) int {
	n := 0
	for _, target := range device.Values[int32](labels) {
		if target >= 0 {
			n++
		}
	}
	return n
}

// Part says which half of a backward pass to run. Zero-bubble plans split it (Qi et al. 2024, section 2).
type Part uint8

// The parts of a backward pass.
const (
	Whole  Part = iota // input and weight gradients
	Input              // the input gradient only: what the upstream stage waits for
	Weight             // the weight gradients only, after Input of the same micro-batch
)

// Shape says what crosses the boundaries of a stage for one micro-batch, and what it holds.
type Shape struct {
	First, Last    bool
	Samples        int // samples in a micro-batch
	InputBytes     int // activations from upstream; token ids on the first stage
	OutputBytes    int // activations to downstream; on the last stage the logits that Evaluate can write
	LabelBytes     int // targets, on the last stage; else 0
	Parameters     int // float32 in the flat parameter vector: of what is trained
	StateVectors   int // flat vectors of optimizer state, each of Parameters float32
	InFlightBytes  int // what one micro-batch holds between its forward and its backward, boundary buffers aside
	ForwardFLOPs   float64
	BackwardFLOPs  float64  // with the forward that is computed again
	ParameterNames []string // the tensors in the flat vector, in order, for messages
}

// Hyper holds what changes from one optimizer step to the next.
type Hyper struct {
	// Elements, of whole tensors, are what the step is taken of; the zero Range: all. Steps of parts must follow each other, with no pass between them.
	Elements     flat.Range
	Step         uint64  // 0-based: how many steps the optimizer's state has seen
	Before       uint64  // steps of the run before Step 0: above 0 where it was resumed without that state, or a step had no gradient to apply
	LearningRate float32 // after the schedule
	GradScale    float32 // the global-norm clip factor, 1 when not clipping
	// Version names the weights that the step makes. It is 0 for the only or the last step of a plan, since what
	// follows begins with them.
	Version int
	// Stash lists the older versions that passes after this step still read; others are forgotten. At most Config.Versions
	// less one of them.
	Stash []int
}

// Tie is a parameter that lies on the first and on the last stage of a pipeline (tied embeddings). Both keep a copy;
// the two ends add each other's gradient before the optimizer step, so the copies stay equal to the bit.
type Tie struct {
	Name     string
	Gradient flat.Vector // of this stage's copy
}

// Boundary is a buffer for what crosses to or from the stage beside this one: bytes of the host, or memory of a device that both stages can use
// (device.Share). The zero Boundary is none.
type Boundary struct {
	Host   []byte     // aligned to 64 bytes
	Memory device.Mem // of Buffers; when present, Host is not used
}

// OnHost is a boundary of the host's bytes.
func OnHost(b []byte) Boundary { return Boundary{Host: b} }

// Bytes is its size.
func (b Boundary) Bytes() int {
	if b.Memory.Absent() {
		return len(b.Host)
	}
	return b.Memory.Bytes()
}

// Buffers are the boundaries in device memory that a stage makes for those beside it: see Config.HandedInputs. A buffer may be written again
// when the stage that read it is done with it.
type Buffers struct {
	Outputs   []device.Mem // for the stage after
	Gradients []device.Mem // of inputs, for the stage before
	// LandedInputs and LandedGradients are for copies of what stages on other devices hand over; none: it is used where it is.
	LandedInputs, LandedGradients []device.Mem
	// Host makes host memory, aligned to 64 bytes, for boundaries that the stage copies, and gives nil when it has no more: see
	// device.HostAllocator. Nil: any memory will do.
	Host func(n int) []byte
}

// Event is when what a stage was asked for has ended; nil: it has.
type Event = device.Event

// Stage computes a run of consecutive layers of one pipeline. Everything that crosses the seam is bytes in host memory
// or a flat vector, so that a stage can run in another process; stages on devices that share memory may also hand boundaries over there.
//
// All methods but Shape are called on the stage's device executor, one at a time. Boundary buffers are the caller's to reuse, and hold the
// tensors of Shape in native byte order.
//
// On a device with a queue, Forward, Backward, Step and Predict return before they have ended. What they write is there, and what they read may
// change, when the event that Ready then returns has passed; what is called next need not wait. A forward's input and labels must stay
// unchanged until its backward has ended so (Weight, when split). The other methods return when they have ended. Up to `slots`
// micro-batches may be in flight at once (Config); one more is an error, not a wait.
type Stage interface {
	Shape() Shape
	// Forward runs micro-batch m. The last stage writes no output: its backward runs the head and the loss against labels.
	Forward(m Micro, input Boundary, labels []byte, output Boundary) error
	// Backward runs the backward of a micro-batch in flight, adding to the gradients. It reads doutput (none on the last
	// stage) and writes dinput (none on the first), but where no stage before it trains anything. Whole or Weight frees its memory.
	Backward(m Micro, part Part, doutput, dinput Boundary) error
	// Buffers are those that outputs and gradients of inputs are to be written to; none where they go through host memory.
	Buffers() Buffers
	// Ready is after the last Forward, Backward, Step or Predict; nil: it has ended.
	Ready() Event
	// Loss is the mean loss, in nats per target, of the micro-batches whose backward has run since the last
	// ZeroGradients; 0 but on the last stage. A loss that is not finite is an error of type *NonFiniteError.
	Loss() (float64, error)
	// SumTies completes the gradients of a batch whose backward has ended: parameters of this stage that are tied to each other get the sum of theirs. SquaredNorm and Step do so as
	// well; whoever reads Gradients before calls it first.
	SumTies()
	// SquaredNorm adds the squared gradient norm of this stage's parameters, in order, to sum. A tied copy counts on the
	// first stage only. Passing the sum from stage to stage gives the same bits on every split. A norm that is not finite is an error of
	// type *NonFiniteError. It takes a pass over the gradients, which a caller that does not clip leaves to Step.
	SquaredNorm(sum float64) (float64, error)
	// Squares are, of a batch whose backward has ended, the squared norm of the gradients as the backward of the micro-batch with Micro.Squares left them, and as they are now:
	// what the scale of their noise is found by. Parameters are counted as SquaredNorm does, but those of Ties are not in first: their sum is the caller's to make. A norm may
	// be not finite, which is for SquaredNorm and Step to say. Nothing changes by it but that ties are summed.
	Squares() (first, now float64, err error)
	// Step applies the optimizer to the parameters and, unless delta is nil, adds the applied update to delta. Call
	// ZeroGradients before the next backward. Where SquaredNorm has not been called in the batch, Step looks at the gradients itself, as it
	// reads them; an error of type *NonFiniteError then comes after the step.
	Step(h Hyper, delta flat.Vector) error
	// Predict, between the passes of two batches and after the step, if there is one, has passes read weights of which some elements are what a Step with h, which is that
	// of the step to come, would now make of the parameters, if gradient were the batch's, with ties added; the others are the parameters. Nothing
	// else changes. A tensor lies in a range or outside of all; running statistics are not predicted, and a tied copy is predicted if and as its
	// original is, where that lies on this stage; where it does not, the caller predicts both or neither. The gradient, which may be nil
	// without a range, is not looked at: losses and gradients of weights that are not finite show it. It is an error without Config.Predicts.
	Predict(h Hyper, gradient flat.Vector, elements ...flat.Range) error
	// ZeroGradients begins a batch. Gradients are undefined from then until the first weight half of a backward, or until
	// SquaredNorm or Step if there is none.
	ZeroGradients()
	// Evaluate runs a forward pass with other parameters (the center's, or a snapshot of it; nil for the stage's own),
	// keeping nothing. On the last stage it returns what labels, unless nil, say of the predictions, and writes the logits
	// when output is not nil.
	Evaluate(parameters flat.Vector, input, labels, output []byte) (Score, error)

	Parameters() flat.Vector
	// Predicted is what passes read with Config.Predicts, else nil. From a step until Predict, or until somebody writes here, that is the parameters, as
	// they are when the batch's first forward begins.
	Predicted() flat.Vector
	Gradients() flat.Vector
	State() []flat.Vector // the optimizer's, Shape().StateVectors of them
	Ties() []Tie
	// NewVector allocates a zeroed vector of Shape().Parameters with the stage's own: for deltas, centers and snapshots.
	NewVector() (flat.Vector, error)
	// Close frees the stage's memory. Vectors of NewVector are freed with it.
	Close() error
}

// NonFiniteError reports a loss or a gradient norm that is NaN or infinite.
type NonFiniteError struct {
	What  string // "loss" or "gradient norm"
	Stage int    // 0-based
	Step  uint64
	Value float64
}

func (e *NonFiniteError) Error() string {
	return fmt.Sprintf("step %d, stage %d: %s", e.Step, e.Stage, e.Problem())
}

// Problem is the error for whoever says the step and the stage already.
func (e *NonFiniteError) Problem() string {
	return fmt.Sprintf("%s is %v: lower optimizer.lr, raise optimizer.warmup or set optimizer.clip_norm", e.What, e.Value)
}
