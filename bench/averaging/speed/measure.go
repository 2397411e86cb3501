package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/avgpipe/avgpipe/bench/internal/report"
	"github.com/avgpipe/avgpipe/stage"
	"github.com/avgpipe/avgpipe/stage/device/ref"
	"github.com/avgpipe/avgpipe/stage/model"
)

// setting is what methods are compared on.
type setting struct {
	replicas int
	link     float64       // Gbit/s
	dictated time.Duration // that a replica computes for a step; 0: as long as the cores take

	layers, width, heads, sequence int
	vocabulary                     int  // of which the tokens of the text, bytes, are the first 256
	tied                           bool // the head has the embedding's weights
	batch, small                   int  // samples of a replica; small is that of dictated times
	warmup, least                  int
	lasts                          time.Duration

	parameters                  int
	forwardFLOPs, backwardFLOPs float64 // of a step
	head                        float64 // share of the backward that is the head's products, forward and backward: a stage with the head computes them there
}

func (s setting) String() string {
	computing := "real cores"
	if s.dictated > 0 {
		computing = fmt.Sprintf("%v dictated", s.dictated)
	}
	return fmt.Sprintf("%d replicas, %g Gbit/s, %s", s.replicas, s.link, computing)
}

// tokens are those of a replica's step.
func (s setting) tokens() int { return s.batch * s.sequence }

// priced fills in what the model costs.
func (s setting) priced() (setting, error) {
	if s.dictated > 0 {
		s.batch = s.small
	}
	m, err := model.Build("gpt2", map[string]any{
		"n_layer": s.layers, "n_head": s.heads, "n_embd": s.width, "n_positions": s.sequence, "vocab_size": s.vocabulary, "tie_word_embeddings": s.tied,
	})
	if err != nil {
		return s, err
	}
	shape, err := stage.Config{Device: ref.New(), Model: m, Samples: s.batch, Slots: 1}.Shape()
	if err != nil {
		return s, err
	}
	s.parameters, s.forwardFLOPs, s.backwardFLOPs = m.Weights(), shape.ForwardFLOPs, shape.BackwardFLOPs
	s.head = 3 * 2 * float64(s.tokens()) * float64(s.width) * float64(s.vocabulary) / s.backwardFLOPs
	return s, nil
}

// measureAll measures every setting and prints a line for each method of it.
func measureAll(ctx context.Context, o options) (figures []report.Figure, err error) {
	var all []measurement
	lines := json.NewEncoder(os.Stdout)
	for _, dictated := range o.computes {
		for _, replicas := range o.replicas {
			for _, link := range o.links {
				s := o.setting
				s.dictated, s.replicas, s.link = dictated, replicas, link
				if s, err = s.priced(); err != nil {
					return figures, err
				}
				readings, err := s.measure(ctx, o)
				if err != nil {
					return figures, fmt.Errorf("%v: %w", s, err)
				}
				measured := compare(s, o.methods, readings)
				for _, m := range measured {
					if err := lines.Encode(m); err != nil {
						return figures, err
					}
				}
				all = append(all, measured...)
				figures = append(figures, judge(s, measured)...)
			}
		}
	}
	if o.figures != "" {
		err = draw(o.figures, all)
	}
	return figures, err
}

// measure measures each method several times, in turn, on one cluster: by method, a reading of each repeat.
func (s setting) measure(ctx context.Context, o options) (all [][]reading, err error) {
	c, err := newCluster(ctx, o.program, s.replicas, int64(s.link*1e9), s.dictated == 0)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, c.close(ctx)) }()
	all = make([][]reading, len(o.methods))
	for repeat := range o.repeats {
		for i, m := range o.methods {
			one := c.train
			if m.name == ddp {
				one = func(ctx context.Context, s setting, m method) (reading, error) { return c.ddp(ctx, s, m, o.python) }
			}
			r, err := one(ctx, s, m)
			if err != nil {
				return nil, err
			}
			all[i] = append(all[i], r)
			fmt.Fprintf(os.Stderr, "%v: %v, repeat %d: a step %.1f ms, cores %.1f ms, sent %.2f MB\n", s, m, repeat+1, 1e3*r.step, 1e3*r.cpu, r.sent/1e6)
		}
	}
	return all, nil
}
