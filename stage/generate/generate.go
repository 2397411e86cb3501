// Package generate uses trained models: it continues a sequence of tokens, translates, and classifies images.
package generate

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/avgpipe/avgpipe/stage"
	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/model"
)

// Config says what to continue, and how.
type Config struct {
	Device  device.Device // not closed by Run
	Model   *model.Model
	Weights stage.Lookup // tensors with Hugging Face's names
	Prompt  []int32      // at least one token
	Tokens  int          // how many to generate
	// Temperature divides the logits before the softmax; 0 takes the most likely token every time.
	Temperature float64
	// TopK keeps the k most likely tokens only; 0 keeps all.
	TopK int
	// Seed determines the draws: the same Config gives the same tokens on the same device.
	Seed uint64
}

// Validate reports the first field that is missing or out of range.
func (c Config) Validate() error {
	switch {
	case c.Device == nil || c.Model == nil || c.Weights == nil:
		return errors.New("generate: Config needs a Device, a Model and Weights")
	case c.Model.Task != model.Language:
		return fmt.Errorf("generate: a %s model, of the task %s; one of the task %s is needed", c.Model.Family, c.Model.Task, model.Language)
	case len(c.Prompt) == 0:
		return errors.New("generate: the prompt is empty; at least one token is needed")
	case c.Tokens < 1:
		return fmt.Errorf("generate: %d tokens; at least 1 is needed", c.Tokens)
	case !(c.Temperature >= 0) || math.IsInf(c.Temperature, 0):
		return fmt.Errorf("generate: temperature is %v; it is at least 0", c.Temperature)
	case c.TopK < 0:
		return fmt.Errorf("generate: top-k is %d; it is at least 0 (all tokens)", c.TopK)
	}
	return nil
}

// Run generates tokens and hands each to emit as soon as it is drawn; it returns early with the error of emit or ctx.
// It computes on the calling goroutine.
//
// Every token costs a forward pass over the whole window (the prompt and what has been generated, at most the model's
// longest sequence; beyond that the oldest tokens drop out). That is enough for looking at a model; serving one wants a
// cache of keys and values, which this is not.
func Run(ctx context.Context, c Config, emit func(token int32) error) (err error) {
	if err := c.Validate(); err != nil {
		return err
	}
	window := min(c.Model.Sequence(), len(c.Prompt)+c.Tokens-1)
	s, err := stage.New(stage.Config{Device: c.Device, Model: c.Model, Samples: 1, Sequence: window, ForwardOnly: true})
	if err != nil {
		return fmt.Errorf("generate: %w", err)
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	if err := s.Load(c.Weights); err != nil {
		return fmt.Errorf("generate: %w", err)
	}
	ids, logits := stage.NewBoundary(s.Shape().InputBytes), stage.NewBoundary(s.Shape().OutputBytes)
	row := make([]float32, c.Model.Vocabulary())
	draw := newSampler(c)
	tokens := slices.Clone(c.Prompt)
	for range c.Tokens {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("generate: %w", err)
		}
		// Attention is causal, so what lies behind the last token does not matter.
		n := copy(ids, device.IntBytes(tokens[max(0, len(tokens)-window):])) / 4
		if _, err := s.Evaluate(nil, ids, nil, logits); err != nil {
			return fmt.Errorf("generate: %w", err)
		}
		copy(device.FloatBytes(row), logits[(n-1)*4*len(row):])
		token, err := draw.token(row)
		if err != nil {
			return fmt.Errorf("generate: token %d: %w", len(tokens)-len(c.Prompt), err)
		}
		tokens = append(tokens, token)
		if err := emit(token); err != nil {
			return err
		}
	}
	return nil
}

// sampler draws tokens.
type sampler struct {
	temperature float64
	keep        int
	rng         *rand.Rand
	order       []int32   // scratch: token ids, most likely first
	weights     []float64 // scratch
}

func newSampler(c Config) *sampler {
	keep := c.Model.Vocabulary()
	if c.TopK > 0 {
		keep = min(keep, c.TopK)
	}
	return &sampler{temperature: c.Temperature, keep: keep, rng: rand.New(rand.NewPCG(c.Seed, 0x67656e6572617465))}
}

func notFinite(id int, logit float32) error {
	return fmt.Errorf("the logit of id %d is %v: the weights are not those of a model trained with finite losses", id, logit)
}

// token draws from softmax(logits / temperature), restricted to the most likely tokens. Equal logits count in the order
// of their ids.
func (s *sampler) token(logits []float32) (int32, error) {
	s.order, s.weights = s.order[:0], s.weights[:0]
	for i, l := range logits {
		if x := float64(l); math.IsNaN(x) || math.IsInf(x, 0) {
			return 0, notFinite(i, l)
		}
		s.order = append(s.order, int32(i))
	}
	slices.SortStableFunc(s.order, func(a, b int32) int {
		switch {
		case logits[a] > logits[b]:
			return -1
		case logits[a] < logits[b]:
			return 1
		}
		return 0
	})
	if s.temperature == 0 {
		return s.order[0], nil
	}
	sum, highest := 0.0, float64(logits[s.order[0]])
	for _, id := range s.order[:s.keep] {
		w := math.Exp((float64(logits[id]) - highest) / s.temperature)
		s.weights, sum = append(s.weights, w), sum+w
	}
	at := s.rng.Float64() * sum
	for i, w := range s.weights {
		if at -= w; at < 0 {
			return s.order[i], nil
		}
	}
	return s.order[0], nil // rounding left a remainder
}
