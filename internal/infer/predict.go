package infer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/data"
	"github.com/avgpipe/avgpipe/internal/data/tokenizer"
	"github.com/avgpipe/avgpipe/internal/words"
	"github.com/avgpipe/avgpipe/stage/model"
)

// mostQuoted is how many characters of an input messages quote.
const mostQuoted = 60

// Predict classifies each input, or fills in its hidden tokens, and hands what it found to emit, with the top likeliest
// classes or tokens.
func (s *Session) Predict(ctx context.Context, top int, inputs []string, emit func(api.Prediction) error) (err error) {
	if err := s.require("predict", model.Classification, model.MaskedLanguage, model.Images); err != nil {
		return err
	}
	if top < 1 || len(inputs) == 0 {
		return &UsageError{fmt.Errorf("predict: %d guesses for %d inputs; at least 1 of each", top, len(inputs))}
	}
	f, err := s.newForward(len(inputs))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.close()) }()
	b := f.batch()
	texts := make([][]int32, len(inputs))
	for i, input := range inputs {
		if texts[i], err = s.enter(b, i, input); err != nil {
			return &UsageError{fmt.Errorf("%s: %w", strconv.Quote(words.Clip(input, mostQuoted)), err)}
		}
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := f.predict(); err != nil {
		return err
	}
	for i, input := range inputs {
		p := api.Prediction{Input: input}
		if s.model.Task == model.MaskedLanguage {
			s.fillIn(&p, f, i, texts[i], top)
		} else {
			p.Guesses = [][]api.Guess{likeliest(f.row(i), top, s.label)}
		}
		if err := emit(p); err != nil {
			return err
		}
	}
	return nil
}

func (s *Session) label(class int) string {
	if labels := s.card.Data.Labels; class < len(labels) {
		return labels[class]
	}
	return strconv.Itoa(class)
}

// fillIn guesses the hidden tokens of sample i, which are all that have the mask's id.
func (s *Session) fillIn(p *api.Prediction, f *forward, i int, ids []int32, top int) {
	hidden := s.tokenizer.Special.Mask
	filled := slices.Clone(ids)
	for at, id := range ids {
		if id != hidden {
			continue
		}
		guesses := likeliest(f.row(i*s.card.Sequence+at), top, func(id int) string { return s.tokenizer.Decode([]int32{int32(id)}) })
		filled[at] = int32(guesses[0].ID)
		p.Guesses = append(p.Guesses, guesses)
	}
	p.Text = s.tokenizer.Decode(filled)
}

// enter writes an input as sample i of a batch, and returns its tokens.
func (s *Session) enter(b data.Batch, i int, input string) ([]int32, error) {
	if s.model.Task == model.Images {
		c := s.dataConfig()
		n := c.Image.Values()
		return nil, data.ReadImage(input, c, b.Pixels[i*n:(i+1)*n])
	}
	if s.model.Task == model.MaskedLanguage && s.tokenizer.IsBytes() {
		input = strings.ReplaceAll(input, "[MASK]", string(rune(tokenizer.ByteMask)))
	}
	texts := []string{input}
	if first, second, pair := strings.Cut(input, "\t"); pair && s.tokenizer.Pair != nil {
		texts = []string{first, second}
	}
	n := s.card.Sequence
	own := data.Batch{Tokens: make([]int32, n), Types: make([]int32, n), Mask: make([]int32, n)}
	if err := data.FillText(s.tokenizer, n, texts, own); err != nil {
		return nil, err
	}
	for _, f := range [...]struct{ to, from []int32 }{{b.Tokens, own.Tokens}, {b.Types, own.Types}, {b.Mask, own.Mask}} {
		copy(f.to[min(i*n, len(f.to)):], f.from) // the model need not have it
	}
	ids := own.Tokens
	if end := slices.Index(own.Mask, 0); end >= 0 {
		ids = ids[:end]
	}
	if s.model.Task == model.MaskedLanguage && !slices.Contains(ids, s.tokenizer.Special.Mask) {
		return nil, errors.New("no token is hidden; write the mask token, such as [MASK], where one is")
	}
	return ids, nil
}
