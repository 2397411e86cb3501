package infer

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/data"
	"github.com/avgpipe/avgpipe/internal/feed"
	"github.com/avgpipe/avgpipe/stage"
	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/layer"
)

// forward runs micro-batches of one shape through the whole model.
type forward struct {
	stage                 *stage.Computed
	feed                  feed.Feed
	input, labels, logits []byte
	values                []float32 // of the logits
	classes               int       // columns of a row of logits
}

// newForward loads the model for micro-batches of so many samples of the card's length.
func (s *Session) newForward(samples int) (*forward, error) {
	size := layer.Size{B: samples, T: s.card.Sequence}
	ports, _ := layer.Ports(s.model.Layers[0], size)
	f := &forward{classes: s.model.Loss.Classes}
	var err error
	if f.feed, err = feed.New(ports, samples); err != nil {
		return nil, fmt.Errorf("%s: %w", s.name, err)
	}
	f.stage, err = stage.New(stage.Config{
		Device: s.device, Model: s.model, Samples: size.B, Sequence: size.T, ForwardOnly: true,
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.name, err)
	}
	if err := f.stage.Load(s.weights.Lookup); err != nil {
		_ = f.stage.Close() // the first error says more
		return nil, fmt.Errorf("%s: %w", s.name, err)
	}
	shape := f.stage.Shape()
	f.input, f.labels, f.logits = stage.NewBoundary(shape.InputBytes), stage.NewBoundary(shape.LabelBytes), stage.NewBoundary(shape.OutputBytes)
	f.values = device.Values[float32](f.logits)
	return f, nil
}

func (f *forward) close() error { return f.stage.Close() }

func (f *forward) batch() data.Batch { return f.feed.Batch(f.input, f.labels) }

// score compares the predictions with the targets of what batch was filled with.
func (f *forward) score() (stage.Score, error) { return f.stage.Evaluate(nil, f.input, f.labels, nil) }

func (f *forward) predict() error {
	_, err := f.stage.Evaluate(nil, f.input, nil, f.logits)
	return err
}

// row is a row of logits; the caller may change it.
func (f *forward) row(i int) []float32 { return f.values[i*f.classes : (i+1)*f.classes] }

// likeliest is the softmax of logits at its n largest, in order; of equal ones the first comes first.
func likeliest(logits []float32, n int, label func(id int) string) []api.Guess {
	order := make([]int, len(logits))
	highest := math.Inf(-1)
	for i, l := range logits {
		order[i] = i
		highest = max(highest, float64(l))
	}
	sum := 0.0
	for _, l := range logits {
		sum += math.Exp(float64(l) - highest)
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(logits[b], logits[a]) })
	var out []api.Guess
	for _, id := range order[:min(n, len(order))] {
		out = append(out, api.Guess{ID: id, Label: label(id), Probability: math.Exp(float64(logits[id])-highest) / sum})
	}
	return out
}
