package schedule

// Kind says what an Op computes.
type Kind uint8

// The kinds of work on one micro-batch.
const (
	Forward        Kind = iota // F: forward
	Backward                   // B: whole backward
	BackwardInput              // I: the input-gradient half of a backward
	BackwardWeight             // W: the weight-gradient half, after I
)

// Op is one unit of compute: a micro-batch's forward or backward, whole or half.
type Op struct {
	Kind  Kind
	Micro int // 0-based
}

// Plan is the order of work for one batch: Plan[k] is what stage k (0-based, 0 is the input side) executes, first to last.
type Plan [][]Op
