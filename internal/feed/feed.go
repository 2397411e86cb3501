// Package feed brings samples to a model: it maps the input ports of its first layer, by their names, to the fields of a batch
// of data, at the places where the model cuts its boundary buffer.
package feed

import (
	"cmp"
	"fmt"

	"github.com/avgpipe/avgpipe/internal/data"
	"github.com/avgpipe/avgpipe/job"
	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/layer"
	"github.com/avgpipe/avgpipe/stage/model"
)

// Feed is where the fields of a batch lie in the boundary buffers of a model's ends.
type Feed struct {
	samples int    // in a micro-batch
	ports   []port // of the input, in order
}

// port is one tensor of a model's input.
type port struct {
	view     func(b *data.Batch, values []byte)
	from, to int // bytes of the input boundary
}

// inputs says which field of a batch each input port of a model is, by its name (model.Task lists those of each task).
var inputs = map[string]func(b *data.Batch, values []byte){
	"ids":         func(b *data.Batch, values []byte) { b.Tokens = device.Values[int32](values) },
	"token_types": func(b *data.Batch, values []byte) { b.Types = device.Values[int32](values) },
	"mask":        func(b *data.Batch, values []byte) { b.Mask = device.Values[int32](values) },
	"decoder_ids": func(b *data.Batch, values []byte) { b.Decoder = device.Values[int32](values) },
	"sample":      func(b *data.Batch, values []byte) { b.Tokens = device.Values[int32](values) },
	"pixels":      func(b *data.Batch, values []byte) { b.Pixels = device.Values[float32](values) },
}

// New makes the feed of a model whose first layer has these input ports for a micro-batch of so many samples.
func New(ports []layer.Port, samples int) (Feed, error) {
	f := Feed{samples: samples}
	at := 0
	for _, p := range ports {
		view, ok := inputs[p.Name]
		if !ok {
			return f, fmt.Errorf("the model takes an input %q, which no data set gives", p.Name)
		}
		n := layer.WordsOf(p.Type, p.Elements)
		f.ports = append(f.ports, port{view: view, from: 4 * at, to: 4 * (at + n)})
		at += layer.Padded(n)
	}
	return f, nil
}

// Batch views the buffers of a micro-batch, either of which may be nil, as a batch.
func (f Feed) Batch(input, labels []byte) data.Batch {
	b := data.Batch{Targets: device.Values[int32](labels)}
	if input == nil {
		return b
	}
	for _, p := range f.ports {
		p.view(&b, input[p.from:p.to])
	}
	return b
}

// Samples is the number of samples in a micro-batch.
func (f Feed) Samples() int { return f.samples }

// ConfigOf is what a job file says of its data, for its model.
func ConfigOf(j *job.Job, m *model.Model) data.Config {
	d := j.Data
	return data.Config{
		Task: data.Task(m.Task), Files: d.Files, Validation: d.Validation, Format: d.Format, Columns: d.Columns,
		NoHeader:  !d.Header && (d.Format == "csv" || d.Format == "tsv"), // other formats have none in any case
		Tokenizer: d.Tokenizer, Labels: d.Labels, Sequence: cmp.Or(d.Sequence, m.Sequence()), Holdout: d.Holdout, Masked: d.Masked,
		Mean: d.Mean, Std: d.Std, Seed: j.Seed, ModelVocabulary: m.Vocabulary(), ModelClasses: m.Loss.Classes, Image: data.Image(m.Image), Counts: data.Counts(m.Samples),
	}
}
