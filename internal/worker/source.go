package worker

import (
	"unsafe"

	"github.com/avgpipe/avgpipe/internal/data"
)

// source feeds the ends of one pipeline from the data set: token ids to its first stage, targets to its last. Both ends ask for
// the same micro-batches, each for its half.
type source struct {
	set     *data.Set
	cursor  data.Cursor // of the pipeline at step 0; Step is replaced
	samples int         // in a micro-batch
}

// Fill writes the ids (b,T) of a micro-batch to input and its targets (b,T) to labels; either may be nil.
func (s source) Fill(step uint64, micro int, input, labels []byte) error {
	cursor := s.cursor
	cursor.Step = step
	return s.set.Fill(cursor, micro*s.samples, s.samples, data.Batch{Tokens: int32s(input), Targets: int32s(labels)})
}

// evaluation feeds the evaluator with held-out samples, in micro-batches. The last may repeat samples of the one before it, so that
// every micro-batch has the stage's shape; targets of repeated samples are ignored.
type evaluation struct {
	set     *data.Set
	total   int // samples asked for
	samples int // in a micro-batch
}

// ignored is the target that no loss is computed for (device.CrossEntropy).
const ignored = -1

// Micros is the number of micro-batches of an evaluation.
func (e evaluation) Micros() int {
	n := e.set.EvaluationSamples(e.total)
	return (n + e.samples - 1) / e.samples
}

// Fill writes micro-batch micro, as source.Fill does.
func (e evaluation) Fill(_ uint64, micro int, input, labels []byte) error {
	var (
		n      = e.set.EvaluationSamples(e.total)
		first  = micro * e.samples
		count  = min(e.samples, n-first)
		length = e.set.Sequence()
		ids    = int32s(input)
		goals  = int32s(labels)
	)
	part := func(v []int32) []int32 {
		if v == nil {
			return nil
		}
		return v[:count*length]
	}
	if err := e.set.FillEvaluation(e.total, first, count, data.Batch{Tokens: part(ids), Targets: part(goals)}); err != nil {
		return err
	}
	for i := count * length; i < len(ids); i++ {
		ids[i] = ids[i%(count*length)]
	}
	for i := count * length; i < len(goals); i++ {
		goals[i] = ignored
	}
	return nil
}

// int32s views a boundary buffer, which is aligned to 64 bytes, as token ids in native byte order.
func int32s(b []byte) []int32 {
	if len(b) == 0 {
		return nil
	}
	return unsafe.Slice((*int32)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/4)
}
