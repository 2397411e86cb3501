package worker

import (
	"github.com/avgpipe/avgpipe/internal/data"
	"github.com/avgpipe/avgpipe/internal/feed"
)

// source feeds the ends of one pipeline from the data set: inputs to its first stage, targets to its last. Both ends ask for
// the same micro-batches, each for its half.
type source struct {
	feed.Feed
	set    *data.Set
	cursor data.Cursor // of the pipeline at step 0; Step is replaced
}

// Fill writes the inputs of a micro-batch to input and its targets to labels; either may be nil.
func (s source) Fill(step uint64, micro int, input, labels []byte) error {
	cursor := s.cursor
	cursor.Step = step
	return s.set.Fill(cursor, micro*s.Samples(), s.Samples(), s.Batch(input, labels))
}

// evaluation feeds the evaluator with held-out samples, in micro-batches.
type evaluation struct {
	feed.Feed
	set   *data.Set
	total int // samples asked for
}

// Micros is the number of micro-batches of an evaluation.
func (e evaluation) Micros() int {
	n := e.set.EvaluationSamples(e.total)
	return (n + e.Samples() - 1) / e.Samples()
}

// Fill writes micro-batch micro, as source.Fill does.
func (e evaluation) Fill(_ uint64, micro int, input, labels []byte) error {
	return e.set.FillEvaluation(e.total, micro*e.Samples(), e.Samples(), e.Batch(input, labels))
}
