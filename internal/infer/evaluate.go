package infer

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/data"
	"github.com/avgpipe/avgpipe/internal/export"
	"github.com/avgpipe/avgpipe/internal/feed"
	"github.com/avgpipe/avgpipe/internal/metric"
	"github.com/avgpipe/avgpipe/job"
	"github.com/avgpipe/avgpipe/stage"
	"github.com/avgpipe/avgpipe/stage/model"
)

const samplesAtOnce = 8

// Evaluate measures the model on the files of a request.
func (s *Session) Evaluate(ctx context.Context, r api.InferRequest) (out api.Scores, err error) {
	set, err := s.open(ctx, r)
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
	out.Samples, err = eachBatch(ctx, f, set, r.Samples, func(count int) error {
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
		bleu, err := s.bleu(ctx, r.Beam, translations)
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
func (s *Session) open(ctx context.Context, r api.InferRequest) (*data.Set, error) {
	c := s.dataConfig()
	c.HoldAll = !r.HeldOut
	for _, path := range r.Files {
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
	set, err := data.Open(ctx, c)
	if problem, ok := errors.AsType[*data.Error](err); ok && strings.HasPrefix(problem.Key, "data.files") {
		return nil, fmt.Errorf("--data: %w", problem.Err) // the key is of job files
	}
	return set, err
}

// dataConfig is how the model's data were read, without files.
func (s *Session) dataConfig() data.Config {
	d := s.card.Data
	d.Files, d.Sequence = nil, s.card.Sequence
	return feed.ConfigOf(&job.Job{Data: d}, s.model)
}

// eachBatch fills micro-batches with the samples that are held out in set, at most `most` of them unless it is 0, and calls do with
// the number of new ones in each; it returns how many samples there were.
func eachBatch(ctx context.Context, f *forward, set *data.Set, most int, do func(count int) error) (samples int, err error) {
	if most == 0 {
		most = int(set.HeldOut()) //nolint:gosec // A count of samples in memory.
	}
	for n := set.EvaluationSamples(most); samples < n; {
		if err := ctx.Err(); err != nil {
			return samples, err
		}
		count := min(f.feed.Samples(), n-samples)
		if err := set.FillEvaluation(most, samples, f.feed.Samples(), f.batch()); err != nil {
			return samples, err
		}
		if err := do(count); err != nil {
			return samples, err
		}
		samples += count
	}
	return samples, nil
}
