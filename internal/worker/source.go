package worker

import (
	"fmt"
	"unsafe"

	"github.com/avgpipe/avgpipe/internal/data"
	"github.com/avgpipe/avgpipe/stage/layer"
)

// feed cuts the boundary buffers of a model's ends into the fields of a batch.
type feed struct {
	samples int    // in a micro-batch
	ports   []port // of the input, in order
}

// port is one tensor of a model's input.
type port struct {
	field    field
	from, to int // bytes of the input boundary
}

// field is where a tensor comes from: one of a batch's.
type field struct {
	tokens func(b *data.Batch) *[]int32
	pixels bool
}

// inputs says which field of a batch each input port of a model is, by its name (model.Task lists those of each task).
var inputs = map[string]field{
	"ids":         {tokens: func(b *data.Batch) *[]int32 { return &b.Tokens }},
	"token_types": {tokens: func(b *data.Batch) *[]int32 { return &b.Types }},
	"mask":        {tokens: func(b *data.Batch) *[]int32 { return &b.Mask }},
	"decoder_ids": {tokens: func(b *data.Batch) *[]int32 { return &b.Decoder }},
	"pixels":      {pixels: true},
}

// newFeed makes the feed of a model whose first layer has these input ports for a micro-batch of so many samples.
func newFeed(ports []layer.Port, samples int) (feed, error) {
	f := feed{samples: samples}
	at := 0
	for _, p := range ports {
		from, ok := inputs[p.Name]
		if !ok {
			return f, fmt.Errorf("the model takes an input %q, which no data set gives", p.Name)
		}
		n := layer.WordsOf(p.Type, p.Elements)
		f.ports = append(f.ports, port{field: from, from: 4 * at, to: 4 * (at + n)})
		at += layer.Padded(n)
	}
	return f, nil
}

// batch views the buffers of a micro-batch, either of which may be nil, as a batch.
func (f feed) batch(input, labels []byte) data.Batch {
	b := data.Batch{Targets: view[int32](labels)}
	if input == nil {
		return b
	}
	for _, p := range f.ports {
		values := input[p.from:p.to]
		if p.field.pixels {
			b.Pixels = view[float32](values)
		} else {
			*p.field.tokens(&b) = view[int32](values)
		}
	}
	return b
}

// first is the first count samples of a batch.
func (f feed) first(b data.Batch, count int) data.Batch {
	return data.Batch{
		Tokens: leading(b.Tokens, count, f.samples), Types: leading(b.Types, count, f.samples),
		Mask: leading(b.Mask, count, f.samples), Decoder: leading(b.Decoder, count, f.samples),
		Pixels: leading(b.Pixels, count, f.samples), Targets: leading(b.Targets, count, f.samples),
	}
}

func leading[T any](v []T, count, samples int) []T { return v[:len(v)/samples*count] }

// pad fills the samples from count on with those before, and ignores their targets.
func (f feed) pad(b data.Batch, count int) {
	if count == f.samples {
		return
	}
	for _, v := range [][]int32{b.Tokens, b.Types, b.Mask, b.Decoder} {
		repeat(v, len(leading(v, count, f.samples)))
	}
	repeat(b.Pixels, len(leading(b.Pixels, count, f.samples)))
	for i := len(leading(b.Targets, count, f.samples)); i < len(b.Targets); i++ {
		b.Targets[i] = data.Ignored
	}
}

// repeat fills v from index n on with what is before.
func repeat[T any](v []T, n int) {
	for i := n; i < len(v); i++ {
		v[i] = v[i-n]
	}
}

// source feeds the ends of one pipeline from the data set: inputs to its first stage, targets to its last. Both ends ask for
// the same micro-batches, each for its half.
type source struct {
	feed
	set    *data.Set
	cursor data.Cursor // of the pipeline at step 0; Step is replaced
}

// Fill writes the inputs of a micro-batch to input and its targets to labels; either may be nil.
func (s source) Fill(step uint64, micro int, input, labels []byte) error {
	cursor := s.cursor
	cursor.Step = step
	return s.set.Fill(cursor, micro*s.samples, s.samples, s.batch(input, labels))
}

// evaluation feeds the evaluator with held-out samples, in micro-batches. The last may repeat samples, so that every
// micro-batch has the stage's shape; targets of repeated samples are ignored.
type evaluation struct {
	feed
	set   *data.Set
	total int // samples asked for
}

// Micros is the number of micro-batches of an evaluation.
func (e evaluation) Micros() int {
	n := e.set.EvaluationSamples(e.total)
	return (n + e.samples - 1) / e.samples
}

// Fill writes micro-batch micro, as source.Fill does.
func (e evaluation) Fill(_ uint64, micro int, input, labels []byte) error {
	first := micro * e.samples
	count := min(e.samples, e.set.EvaluationSamples(e.total)-first)
	b := e.batch(input, labels)
	if err := e.set.FillEvaluation(e.total, first, count, e.first(b, count)); err != nil {
		return err
	}
	e.pad(b, count)
	return nil
}

// view is a part of a boundary buffer, which is aligned to 64 bytes, as values in native byte order; nil of nothing.
func view[T int32 | float32](b []byte) []T {
	if len(b) == 0 {
		return nil
	}
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/4)
}
