package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/avgpipe/avgpipe/bench/internal/report"
	"github.com/avgpipe/avgpipe/stage"
	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/model"
)

// generatePeer continues a sequence with PyTorch.
//
//go:embed generate_peer.py
var generatePeer string

// prompt is the part of a sequence that is given; the rest is generated.
func (s shape) prompt() int { return s.Sequence / 4 }

// generation measures the first shape, and the widest, in both precisions.
func generation(ctx context.Context, o options) (figures []report.Figure, err error) {
	for _, s := range []shape{shapes[0], shapes[2]} {
		for _, s.Precision = range []string{device.F32.String(), device.BF16.String()} {
			f, err := compareGeneration(ctx, o, s)
			if err != nil {
				return nil, fmt.Errorf("generate, %s, %s: %w", s.Name, s.Precision, err)
			}
			figures = append(figures, f...)
		}
	}
	return figures, nil
}

// compareGeneration runs the two sides in turn: tokens a second of a sequence that is continued greedily.
func compareGeneration(ctx context.Context, o options, s shape) ([]report.Figure, error) {
	s.Generate, s.Steps = true, 3
	var ratios []float64
	var last outcome
	for range o.rounds {
		own, _, err := runSelf(ctx, s)
		if err != nil {
			return nil, err
		}
		last = own
		cmd := exec.CommandContext(ctx, o.python, append([]string{"-"}, strings.Fields(fmt.Sprintf(
			"--precision %s --layers %d --width %d --heads %d --seq %d --vocab %d --prompt %d --runs %d",
			s.Precision, s.Layers, s.Width, s.Heads, s.Sequence, s.Vocabulary, s.prompt(), s.Steps))...)...)
		cmd.Env, cmd.Stdin = append(os.Environ(), peerEnvironment...), strings.NewReader(generatePeer)
		peer, _, err := process(cmd)
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(os.Stderr, "generate, %s, %s: %.1f tokens/s, the peer %.1f\n", s.Name, s.Precision, own.TokensPerS, peer.TokensPerS)
		ratios = append(ratios, own.TokensPerS/peer.TokensPerS)
	}
	conditions := map[string]any{
		"shape": s, "parameters": last.Parameters, "device": last.Device, "ratios": ratios, "tokens_per_s": last.TokensPerS,
	}
	return []report.Figure{{
		Metric: "tokens/s over the peer's, generate " + s.Precision + ", " + s.Name, Value: report.Median(ratios), Unit: "x", Bar: 1.2, Aim: 2,
		Conditions: conditions,
	}}, nil
}

// generateShape times the tokens after the first of a sequence of one sample, from a prompt on.
func generateShape(dev device.Device, s shape, m *model.Model, o *outcome) (err error) {
	st, err := stage.New(stage.Config{Device: dev, Model: m, Samples: 1, Sequence: 1, Seed: 1, Compute: s.compute(), ForwardOnly: true})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, st.Close()) }()
	past, err := st.NewContext(s.Sequence)
	if err != nil {
		return err
	}
	defer past.Close()
	random := rand.New(rand.NewPCG(1, 2))
	ids, logits := make([]int32, s.prompt()), make([]float32, s.Vocabulary)
	for i := range ids {
		ids[i] = random.Int32N(int32(s.Vocabulary))
	}
	tokens := float64(s.Sequence - s.prompt() - 1)
	var seconds []float64
	for range s.Steps {
		past.Clear()
		if err := past.Advance(ids, logits); err != nil {
			return err
		}
		start := time.Now()
		for past.Room() > 1 {
			next := int32(slices.Index(logits, slices.Max(logits)))
			if err := past.Advance([]int32{next}, logits); err != nil {
				return err
			}
		}
		seconds = append(seconds, time.Since(start).Seconds()/tokens)
	}
	o.Parameters, o.TokensPerS = m.Weights(), 1/report.Median(seconds)
	return dev.Synchronize()
}
