// Package generate uses trained models: it continues a sequence of tokens, translates, and classifies images.
package generate

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/avgpipe/avgpipe/stage"
	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/model"
)

// Config says what to continue, and how.
type Config struct {
	Device  device.Device // not closed by Run
	Model   *model.Model
	Weights stage.Lookup // tensors with Hugging Face's names
	// Compute is the type in which products take their operands: F32, or BF16, which reads half as many bytes of the weights for each token.
	Compute device.Type
	Prompt  []int32 // at least one token
	Tokens  int     // how many to generate at most
	Stop    []int32 // tokens that end the sequence; they are not handed to emit
	// Temperature divides the logits before the softmax; 0 takes the most likely token every time.
	Temperature float64
	// TopK keeps the k most likely tokens only; 0 keeps all.
	TopK int
	// TopP keeps the fewest of the most likely tokens whose probabilities sum up to it; 0 and 1 keep all.
	TopP float64
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
	case !(c.TopP >= 0 && c.TopP <= 1):
		return fmt.Errorf("generate: top-p is %v; it is 0 to 1 (all tokens)", c.TopP)
	}
	return nil
}

// Outcome is what a run did.
type Outcome struct {
	Tokens  int           // generated
	Stopped bool          // one of Config.Stop came
	Prompt  time.Duration // until the logits of the first token were there, the weights being loaded
	Rest    time.Duration // for the tokens after the first
}

// PerSecond is the rate of the tokens after the first; 0 where there is none.
func (o Outcome) PerSecond() float64 {
	if o.Tokens < 2 {
		return 0
	}
	return float64(o.Tokens-1) / o.Rest.Seconds()
}

// Run generates tokens and hands each to emit as soon as it is drawn; it returns early with the error of emit or ctx, and in any case what it
// did until then. It computes on the calling goroutine.
//
// The prompt is one pass, and every token after that a pass of one position, over what a stage.Context keeps of those before. When the model's
// longest sequence is full, the older half of it is forgotten, and the rest is computed anew, in one pass, as if the text began there: a longer
// prompt counts by its end. A recurrent model forgets nothing.
func Run(ctx context.Context, c Config, emit func(token int32) error) (o Outcome, err error) {
	if err := c.Validate(); err != nil {
		return o, err
	}
	config := stage.Config{Device: c.Device, Model: c.Model, Samples: 1, Sequence: 1, Compute: c.Compute, ForwardOnly: true}
	positions := min(c.Model.Sequence(), len(c.Prompt)+c.Tokens-1)
	if err := checkMemory(config, positions, min(positions, len(c.Prompt))); err != nil {
		return o, err
	}
	s, err := stage.New(config)
	if err != nil {
		return o, fmt.Errorf("generate: %w", err)
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	if err := s.Load(c.Weights); err != nil {
		return o, fmt.Errorf("generate: %w", err)
	}
	past, err := s.NewContext(positions)
	if err != nil {
		return o, fmt.Errorf("generate: %w", err)
	}
	defer past.Close()
	r := run{Config: c, past: past, tokens: slices.Clone(c.Prompt), logits: make([]float32, c.Model.Vocabulary()), draw: newSampler(c)}
	r.next = r.tokens[max(0, len(r.tokens)-past.Room()):]
	err = r.generate(ctx, emit)
	return r.done, err
}

// checkMemory refuses what does not fit before it is loaded: the system would end the program instead.
func checkMemory(config stage.Config, positions, longest int) error {
	b, err := config.Bytes()
	if err != nil {
		return fmt.Errorf("generate: %w", err)
	}
	kept, err := config.ContextBytes(positions, longest)
	if err != nil {
		return fmt.Errorf("generate: %w", err)
	}
	available := device.HostAvailable()
	if needed := b.Total() + kept; config.Device.Host() && needed > available {
		return fmt.Errorf("generate: the model takes %d bytes and a context of %d positions %d, %d bytes are available; generate fewer tokens, or use a "+
			"smaller model", b.Total(), positions, kept, available)
	}
	return nil
}

// run is a run with what it has done.
type run struct {
	Config
	done   Outcome
	past   *stage.Context
	tokens []int32 // of the prompt, and generated
	next   []int32 // those whose pass comes next
	logits []float32
	draw   *sampler
}

func (r *run) generate(ctx context.Context, emit func(int32) error) error {
	start := time.Now()
	for r.done.Tokens < r.Tokens {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("generate: %w", err)
		}
		token, err := r.token()
		if err != nil {
			return fmt.Errorf("generate: token %d: %w", r.done.Tokens, err)
		}
		if slices.Contains(r.Stop, token) {
			r.done.Stopped = true
			return nil
		}
		if r.done.Tokens++; r.done.Tokens == 1 {
			r.done.Prompt, start = time.Since(start), time.Now()
		} else {
			r.done.Rest = time.Since(start)
		}
		if err := emit(token); err != nil {
			return err
		}
	}
	return nil
}

// token draws the token after all others.
func (r *run) token() (int32, error) {
	if len(r.next) > r.past.Room() {
		r.past.Clear()
		r.next = r.tokens[len(r.tokens)-(r.past.Room()+1)/2:]
	}
	if err := r.past.Advance(r.next, r.logits); err != nil {
		return 0, err
	}
	token, err := r.draw.token(r.logits)
	r.tokens = append(r.tokens, token)
	r.next = r.tokens[len(r.tokens)-1:]
	return token, err
}
