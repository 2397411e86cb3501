package infer

import (
	"context"
	"fmt"
	"strconv"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/data"
	"github.com/avgpipe/avgpipe/internal/metric"
	"github.com/avgpipe/avgpipe/internal/words"
	"github.com/avgpipe/avgpipe/stage/generate"
	"github.com/avgpipe/avgpipe/stage/model"
)

// lengthPenalty is what translations of several lengths are compared with (Wu et al. 2016, section 7).
const lengthPenalty = 0.6

// Translate translates texts, with a beam of so many translations pursued at once, and hands each translation to emit.
func (s *Session) Translate(ctx context.Context, beam int, texts []string, emit func(api.Translation) error) error {
	if err := s.require("translate", model.Translation); err != nil {
		return err
	}
	encoder := s.tokenizer.NewEncoder()
	sources := make([][]int32, len(texts))
	for i, text := range texts {
		ids, err := encoder.Append(nil, text)
		if err != nil {
			return &UsageError{fmt.Errorf("%s: %w", strconv.Quote(words.Clip(text, mostQuoted)), err)}
		}
		sources[i] = ids[:min(len(ids), s.card.Sequence-1)] // as in training; the end has its place
	}
	next := 0
	return s.translate(ctx, beam, sources, func(target []int32) error {
		t := api.Translation{Source: texts[next], Text: s.tokenizer.Decode(target)}
		next++
		return emit(t)
	})
}

func (s *Session) translate(ctx context.Context, beam int, sources [][]int32, emit func(target []int32) error) error {
	special := s.tokenizer.Special
	t := generate.Translation{
		Device: s.device, Model: s.model, Weights: s.weights.Lookup, Sequence: s.card.Sequence,
		Start: special.Start(), End: special.End, Pad: special.Padding(),
		Beam: beam, LengthPenalty: lengthPenalty,
	}
	if err := t.Validate(); err != nil {
		return &UsageError{err}
	}
	return t.Run(ctx, sources, emit)
}

// pair is a source and the translation that is expected of it.
type pair struct{ source, target []int32 }

// pairs cuts the first count samples of a batch of translations out of their padding.
func (s *Session) pairs(b data.Batch, count int) []pair {
	end, n := s.tokenizer.Special.End, s.card.Sequence
	out := make([]pair, count)
	for i := range out {
		out[i].source = before(b.Tokens[i*n:(i+1)*n], end, b.Mask[i*n:(i+1)*n])
		out[i].target = before(b.Targets[i*n:(i+1)*n], end, nil)
	}
	return out
}

// before copies what precedes the last end, the ignored targets and what the mask, unless it is nil, hides.
func before(ids []int32, end int32, mask []int32) []int32 {
	n := 0
	for n < len(ids) && ids[n] != data.Ignored && (mask == nil || mask[n] != 0) {
		n++
	}
	if n > 0 && ids[n-1] == end {
		n--
	}
	return append([]int32{}, ids[:n]...)
}

// bleu compares translations of what is in pairs with what is expected.
func (s *Session) bleu(ctx context.Context, beam int, pairs []pair) (float64, error) {
	sources := make([][]int32, len(pairs))
	for i, p := range pairs {
		sources[i] = p.source
	}
	var total metric.BLEU
	next := 0
	err := s.translate(ctx, beam, sources, func(target []int32) error {
		total.Add(metric.Words(s.tokenizer.Decode(target)), metric.Words(s.tokenizer.Decode(pairs[next].target)))
		next++
		return nil
	})
	return total.Score(true), err
}
