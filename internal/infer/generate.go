package infer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/data/tokenizer"
	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/generate"
	"github.com/avgpipe/avgpipe/stage/model"
)

// Generate writes the continuation of a request's prompt to out, as it is drawn, until the document or the text ends, there are enough tokens,
// or ctx ends. It returns what was done; the text went to out.
func (s *Session) Generate(ctx context.Context, r api.InferRequest, out io.Writer) (g api.Generation, err error) {
	if err := s.require("continue a text", model.Language); err != nil {
		return g, err
	}
	c, err := s.generation(r)
	if err != nil {
		return g, err
	}
	stops := &stopWriter{out: out, stops: r.Stop}
	w := newTextWriter(s.tokenizer, c.Prompt[len(c.Prompt)-1], stops)
	o, err := generate.Run(ctx, c, w.write)
	g = api.Generation{
		Prompt: r.Prompt, FinishReason: api.FinishLength, PromptTokens: len(c.Prompt), Tokens: o.Tokens, PromptSeconds: o.Prompt.Seconds(),
		TokensPerSecond: o.PerSecond(),
	}
	switch {
	case errors.Is(err, errEnd):
		g.FinishReason = api.FinishStop
		return g, nil
	case errors.Is(err, context.Canceled):
		g.FinishReason = api.FinishInterrupted
	case err != nil:
		return g, err
	case o.Stopped:
		g.FinishReason = api.FinishStop
	}
	if err := w.flush(); err != nil && !errors.Is(err, errEnd) {
		return g, err
	}
	return g, stops.flush()
}

// generation is what a request asks for.
func (s *Session) generation(r api.InferRequest) (c generate.Config, err error) {
	prompt, err := s.prompt(r.Prompt)
	if err != nil {
		return c, err
	}
	c = generate.Config{
		Device: s.device, Model: s.model, Weights: s.weights.Lookup, Prompt: prompt, Tokens: r.Tokens,
		Temperature: r.Temperature, TopK: r.TopK, TopP: r.TopP, Seed: r.Seed,
	}
	if end := s.tokenizer.Special.End; end != tokenizer.None {
		c.Stop = []int32{end}
	}
	if slices.Contains(r.Stop, "") {
		return c, &UsageError{errors.New("generate: a string that ends the text is empty")}
	}
	switch cmp.Or(r.Precision, device.F32.String()) {
	case device.F32.String():
	case device.BF16.String():
		c.Compute = device.BF16
	default:
		return c, &UsageError{fmt.Errorf("generate: no precision %q; f32 and bf16 are possible", r.Precision)}
	}
	if err := c.Validate(); err != nil {
		return c, &UsageError{err}
	}
	return c, nil
}

// UsageError is a mistake of whoever asked: of the request, or of the model that is asked for what it was not trained to do.
type UsageError struct{ Err error }

func (e *UsageError) Error() string { return e.Err.Error() }
func (e *UsageError) Unwrap() error { return e.Err }

// prompt is the tokens of a text. A document starts after the token that ends the one before it, as in training.
func (s *Session) prompt(text string) ([]int32, error) {
	if text != "" {
		ids, err := s.tokenizer.NewEncoder().Append(nil, text)
		if err != nil {
			return nil, &UsageError{fmt.Errorf("the prompt: %w", err)}
		}
		return ids, nil
	}
	special := s.tokenizer.Special
	for _, id := range []int32{special.End, special.Begin} {
		if id != tokenizer.None {
			return []int32{id}, nil
		}
	}
	return nil, &UsageError{errors.New("the prompt is empty, and the tokenizer has no token that starts a document; give a --prompt")}
}

// textWriter writes the text of tokens as soon as it is certain: a character may take several tokens.
type textWriter struct {
	tokenizer *tokenizer.Tokenizer
	out       io.Writer
	ids       []int32 // the last one whose text is written, which is context, and those after it
	written   int     // bytes of their text that are written
}

func newTextWriter(t *tokenizer.Tokenizer, last int32, out io.Writer) *textWriter {
	return &textWriter{tokenizer: t, out: out, ids: []int32{last}, written: len(t.Decode([]int32{last}))}
}

// maxPending bounds the tokens of one character; beyond it the text is written as it stands.
const maxPending = 8

func (w *textWriter) write(token int32) error {
	if w.tokenizer.IsBytes() {
		_, err := w.out.Write([]byte{byte(token)})
		return err
	}
	w.ids = append(w.ids, token)
	text := w.tokenizer.Decode(w.ids)
	if strings.HasSuffix(text, "\uFFFD") && len(w.ids) <= maxPending {
		return nil
	}
	return w.put(text)
}

// put writes what is new of the text, and keeps the last token: what a token means may depend on the one before.
func (w *textWriter) put(text string) error {
	_, err := io.WriteString(w.out, text[min(w.written, len(text)):])
	last := w.ids[len(w.ids)-1]
	w.ids = append(w.ids[:0], last)
	w.written = len(w.tokenizer.Decode(w.ids))
	return err
}

func (w *textWriter) flush() error {
	return w.put(w.tokenizer.Decode(w.ids))
}
