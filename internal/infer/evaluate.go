package infer

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/data"
	"github.com/avgpipe/avgpipe/internal/export"
	"github.com/avgpipe/avgpipe/internal/feed"
	"github.com/avgpipe/avgpipe/internal/metric"
	"github.com/avgpipe/avgpipe/job"
	"github.com/avgpipe/avgpipe/stage"
	"github.com/avgpipe/avgpipe/stage/model"
)

// Evaluate says what to measure a model on.
type Evaluate struct {
	Files   []string // as in a job file; relative paths start at the working directory
	HeldOut bool     // only the part that a job with these files holds out
	Samples int      // at most; 0: all
	Beam    int      // of translations, whose BLEU is measured
}

// samplesAtOnce is the micro-batch of an evaluation.
const samplesAtOnce = 8

// Evaluate measures the model.
func (s *Session) Evaluate(ctx context.Context, e Evaluate) (out api.Scores, err error) {
	set, err := s.open(ctx, e)
	if err != nil {
		return out, &UsageError{err}
	}
	f, err := s.newForward(samplesAtOnce)
	if err != nil {
		return out, errors.Join(err, set.Close())
	}
	defer func() { err = errors.Join(err, f.close(), set.Close()) }()
	var total stage.Score
	var translations []pair
	out.Samples, err = eachBatch(ctx, f, parts(set, e), func(count int) error {
		if s.model.Task == model.Translation {
			translations = append(translations, s.pairs(f.batch(), count)...)
		}
		score, err := f.score()
		total.Add(score)
		return err
	})
	if err != nil {
		return out, err
	}
	out.Task, out.Targets, out.Loss = string(s.model.Task), total.Targets, total.MeanLoss()
	out.Metrics = feed.Metrics(s.model.Task, total)
	if len(translations) > 0 {
		bleu, err := s.bleu(ctx, e.Beam, translations)
		if err != nil {
			return out, err
		}
		out.BLEU = &bleu
	}
	for class, c := range total.Classes {
		out.Classes = append(out.Classes, api.ClassScore{
			Label: s.label(class), Targets: c.Targets, Predicted: c.Predicted, Correct: c.Correct, F1: metric.F1(c.Targets, c.Predicted, c.Correct),
		})
	}
	return out, nil
}

// open opens the files as the model's data were read.
func (s *Session) open(ctx context.Context, e Evaluate) (*data.Set, error) {
	c := s.dataConfig()
	for _, path := range e.Files {
		absolute, err := filepath.Abs(path)
		if err != nil {
			return nil, fmt.Errorf("find %s: %w", path, err)
		}
		c.Files = append(c.Files, absolute)
	}
	if s.tokenizer != nil && !s.tokenizer.IsBytes() {
		absolute, err := filepath.Abs(filepath.Join(s.dir, export.TokenizerFile))
		if err != nil {
			return nil, fmt.Errorf("find the tokenizer of %s: %w", s.dir, err)
		}
		c.Tokenizer = absolute
	}
	return data.Open(ctx, c)
}

// dataConfig is how the model's data were read, without files.
func (s *Session) dataConfig() data.Config {
	d := s.card.Data
	d.Files, d.Sequence = nil, s.card.Sequence
	return data.ConfigOf(&job.Job{Data: d}, feed.ModelOf(s.model))
}

// part is a run of samples.
type part struct {
	samples int
	fill    func(first, count int, b data.Batch) error
}

// parts are what is measured on: what is held out, and unless that is all, what would be trained on.
func parts(set *data.Set, e Evaluate) []part {
	most := e.Samples
	if most == 0 {
		most = int(set.HeldOut())
	}
	held := set.EvaluationSamples(most)
	all := []part{{held, func(first, count int, b data.Batch) error { return set.FillEvaluation(most, first, count, b) }}}
	if e.HeldOut {
		return all
	}
	rest := int(set.Samples())
	if e.Samples > 0 {
		rest = min(rest, e.Samples-held)
	}
	// One pass over the training data is one batch of all of it.
	cursor := set.Cursor(0, 1, int(set.Samples()))
	return append(all, part{rest, func(first, count int, b data.Batch) error { return set.Fill(cursor, first, count, b) }})
}

// eachBatch fills micro-batches with all samples of parts and calls do with the number of new ones in each; it returns
// how many samples there were.
func eachBatch(ctx context.Context, f *forward, parts []part, do func(count int) error) (samples int, err error) {
	for _, p := range parts {
		for first := 0; first < p.samples; first += f.feed.Samples() {
			if err := ctx.Err(); err != nil {
				return samples, err
			}
			count := min(f.feed.Samples(), p.samples-first)
			b := f.batch()
			if err := p.fill(first, count, f.feed.First(b, count)); err != nil {
				return samples, err
			}
			f.feed.Pad(b, count)
			if err := do(count); err != nil {
				return samples, err
			}
			samples += count
		}
	}
	return samples, nil
}
