package main

import (
	"bytes"
	"context"
	_ "embed" // the peer's script
	"encoding/csv"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"strconv"

	"github.com/avgpipe/avgpipe/bench/internal/report"
)

// bench are the flags of `gpu-smoke bench`.
type bench struct {
	rounds              int
	peer, python, csvTo string
	own                 bool
}

func (b *bench) flags() {
	flag.IntVar(&b.rounds, "rounds", 3, "bench: runs of each side, in turn")
	flag.StringVar(&b.peer, "peer", "", "bench: a script in place of the program's own; it takes --family --config --sequence --batch --micro --steps, and prints a JSON line with tokens_per_s")
	flag.StringVar(&b.python, "python", "python3", "bench: runs the peer's script; it needs PyTorch with CUDA")
	flag.BoolVar(&b.own, "own", false, "bench: without a peer")
	flag.StringVar(&b.csvTo, "losses", "losses.csv", "bench: where the loss curves go")
}

// shapes are what is trained.
func (o options) shapes() map[string]request {
	if o.toy {
		return map[string]request{
			"gpt2": {Family: "gpt2", Config: map[string]any{"n_layer": 1, "n_head": 2, "n_embd": 16, "n_positions": 8, "vocab_size": 32}, Sequence: 8, Batch: 2, Steps: 2},
			"bert": {Family: "bert", Config: transformer(map[string]any{"architectures": "BertForMaskedLM"}), Sequence: 8, Batch: 2, Steps: 2},
		}
	}
	return map[string]request{
		"gpt2": {Family: "gpt2", Config: map[string]any{"n_layer": 12, "n_head": 12, "n_embd": 768, "n_positions": 1024, "vocab_size": 50257}, Sequence: 1024, Batch: 32, Steps: 10},
		"bert": {Family: "bert", Config: map[string]any{
			"architectures": "BertForMaskedLM", "num_hidden_layers": 24, "num_attention_heads": 16, "hidden_size": 1024, "intermediate_size": 4096,
			"max_position_embeddings": 512, "vocab_size": 30522, "hidden_dropout_prob": 0, "attention_probs_dropout_prob": 0,
		}, Sequence: 512, Batch: 32, Steps: 10},
	}
}

// compare is the benchmark.
func (o options) compare(ctx context.Context) ([]report.Figure, error) {
	if _, err := findDriver(o); err != nil {
		return nil, err
	}
	named := o.parts
	if named == "" {
		named = "gpt2,bert,curve,losses"
	}
	shape := func(name string) report.Part {
		return report.Part{Name: name, Measure: func(ctx context.Context) ([]report.Figure, error) { return o.against(ctx, name) }}
	}
	return report.Parts(ctx, named, shape("gpt2"), shape("bert"), report.Part{Name: "curve", Measure: o.curve}, report.Part{Name: "losses", Measure: o.writeLosses})
}

// cuts are the samples of a micro-batch that each side may choose from, for a batch.
func cuts(batch int) (all []int) {
	for n := min(batch, 4); n <= batch; n *= 2 {
		all = append(all, n)
	}
	return all
}

// side is one of those that train in turn.
type side struct {
	name string
	rate func(ctx context.Context, r request) (rate float64, found values, err error)
}

// best is the highest rate of a side, by micro-batches of all sizes. A size that does not fit is passed over.
func (s side) best(ctx context.Context, r request) (highest float64, found values, err error) {
	var failed error
	for _, r.Samples = range cuts(r.Batch) {
		rate, v, err := s.rate(ctx, r)
		if err != nil {
			failed = errors.Join(failed, fmt.Errorf("%s, micro-batches of %d: %w", s.name, r.Samples, err))
			fmt.Fprintf(os.Stderr, "%s, micro-batches of %d: %v\n", s.name, r.Samples, err)
			continue
		}
		fmt.Fprintf(os.Stderr, "%s, micro-batches of %d: %.0f tokens/s\n", s.name, r.Samples, rate)
		if rate > highest {
			highest, found = rate, v
			found["micro_batch"] = r.Samples
		}
	}
	if found == nil {
		return 0, nil, failed
	}
	return highest, found, nil
}

// against runs the two sides in turn.
func (o options) against(ctx context.Context, name string) ([]report.Figure, error) {
	r := o.shapes()[name]
	var ratios, shares, rates, peers []float64
	var last, lastPeer values
	for range o.bench.rounds {
		rate, found, err := side{"own", o.ownRate}.best(ctx, r)
		if err != nil {
			return nil, err
		}
		share, _ := found["utilisation"].(float64)
		shares, rates, last = append(shares, share), append(rates, rate), found
		if o.bench.own {
			continue
		}
		peer, found, err := side{"peer", o.peerRate}.best(ctx, r)
		if err != nil {
			return nil, err
		}
		ratios, peers, lastPeer = append(ratios, rate/peer), append(peers, peer), found
	}
	conditions := map[string]any{"shape": r, "last": last, "tokens_per_s": rates, "shares": shares, "peer_tokens_per_s": peers, "ratios": ratios, "last_peer": lastPeer}
	figures := []report.Figure{{
		Metric: "model FLOPs over the rate of cuBLAS, bf16, " + name, Value: report.Median(shares), Unit: "of 1", Bar: 0.45, Aim: 0.6, Conditions: conditions,
	}}
	if !o.bench.own {
		figures = append(figures, report.Figure{
			Metric: "tokens/s over the peer's, bf16, " + name, Value: report.Median(ratios), Unit: "x", Bar: 1, Aim: 1.2, Conditions: conditions,
		})
	}
	return figures, nil
}

// ownRate trains in a process of its own.
func (o options) ownRate(ctx context.Context, r request) (float64, values, error) {
	return o.ask(ctx, "train", r)
}

// ask has a step do what a request says.
func (o options) ask(ctx context.Context, step string, r request) (float64, values, error) {
	text, err := json.Marshal(r)
	if err != nil {
		return 0, nil, fmt.Errorf("write a request: %w", err)
	}
	found, _, err := o.process(ctx, step, "-request", string(text))
	if err != nil {
		return 0, nil, err
	}
	rate, ok := found["tokens_per_s"].(float64)
	if !ok || rate <= 0 {
		return 0, nil, fmt.Errorf("step %s found %v tokens/s, expected more than 0", step, found["tokens_per_s"])
	}
	return rate, found, nil
}

// ownPeer trains the same with PyTorch.
//
//go:embed train_peer.py
var ownPeer []byte

// peerRate runs the peer's script.
func (o options) peerRate(ctx context.Context, r request) (float64, values, error) {
	config, err := json.Marshal(r.Config)
	if err != nil {
		return 0, nil, fmt.Errorf("write a configuration: %w", err)
	}
	script := o.bench.peer
	if script == "" {
		script = "-"
	}
	var printed bytes.Buffer
	cmd := exec.CommandContext(ctx, o.bench.python, script, "--family", r.Family, "--config", string(config), "--sequence", strconv.Itoa(r.Sequence),
		"--batch", strconv.Itoa(r.Batch), "--micro", strconv.Itoa(r.Samples), "--steps", strconv.Itoa(r.Steps), "--gpu", strconv.Itoa(o.ordinal))
	if script == "-" {
		cmd.Stdin = bytes.NewReader(ownPeer)
	}
	cmd.Stderr = &printed
	out, err := cmd.Output()
	if err != nil {
		return 0, nil, fmt.Errorf("run the peer: %w: %s", err, ending(printed.String()))
	}
	var found values
	if err := json.Unmarshal(out, &found); err != nil {
		return 0, nil, fmt.Errorf("the peer printed %.200q: %w", out, err)
	}
	rate, ok := found["tokens_per_s"].(float64)
	if !ok || rate <= 0 {
		return 0, nil, fmt.Errorf("the peer printed %.200q, expected tokens_per_s above 0", out)
	}
	return rate, found, nil
}

// point is one way to lay GPT-2 over one GPU.
type point struct {
	Pipelines  int     `json:"pipelines"`
	Stages     int     `json:"stages"`
	Samples    int     `json:"micro_batch"`
	TokensPerS float64 `json:"tokens_per_s,omitempty"`
	Error      string  `json:"error,omitempty"`
}

// curve trains N pipelines of K stages on one GPU, by micro-batches of all sizes. Each pipeline has a batch of 32 samples.
func (o options) curve(ctx context.Context) ([]report.Figure, error) {
	counts, sizes := []int{1, 2, 4}, []int{1, 2, 4, 8}
	if o.toy {
		counts, sizes = []int{1, 2}, []int{1}
	}
	r := o.shapes()["gpt2"]
	if o.toy {
		r.Config["n_layer"] = 2
	}
	var points []point
	single, highest := 0.0, 0.0 // the best of one pipeline of one stage, and of all others
	for _, r.Samples = range sizes {
		for _, r.Pipelines = range counts {
			for _, r.Stages = range counts {
				p := point{Pipelines: r.Pipelines, Stages: r.Stages, Samples: r.Samples}
				rate, _, err := o.ask(ctx, "pipeline", r)
				if p.TokensPerS = rate; err != nil {
					p.Error = err.Error()
				}
				fmt.Fprintf(os.Stderr, "N=%d, K=%d, micro-batches of %d: %.0f tokens/s %s\n", p.Pipelines, p.Stages, p.Samples, rate, p.Error)
				points = append(points, p)
				if r.Pipelines*r.Stages == 1 {
					single = max(single, rate)
				} else {
					highest = max(highest, rate)
				}
			}
		}
	}
	if single == 0 || highest == 0 {
		return nil, fmt.Errorf("no layout of one pipeline and stage, or none of more, trains: %+v", points)
	}
	return []report.Figure{{
		Metric: "tokens/s of the best N x K on one GPU over N=1, K=1, bf16, gpt2", Value: highest / single, Unit: "x", Bar: 1, Aim: 1.2,
		Conditions: map[string]any{"shape": r, "points": points},
	}}, nil
}

// writeLosses writes the losses of one training on each kind of device, and checks that they are near each other.
func (o options) writeLosses(ctx context.Context) ([]report.Figure, error) {
	found, _, err := o.process(ctx, "training")
	if err != nil {
		return nil, err
	}
	curves, ok := found["curves"].(map[string]any)
	if !ok {
		return nil, fmt.Errorf("step training found %v, expected curves", found)
	}
	names := []string{"cpu", "gpu f32", "gpu bf16"}
	rows := [][]string{append([]string{"step"}, names...)}
	for _, name := range names {
		losses, _ := curves[name].([]any)
		for i, loss := range losses {
			if len(rows) == i+1 {
				rows = append(rows, []string{strconv.Itoa(i)})
			}
			rows[i+1] = append(rows[i+1], fmt.Sprint(loss))
		}
	}
	var text bytes.Buffer
	err = csv.NewWriter(&text).WriteAll(rows)
	if err == nil {
		err = os.WriteFile(o.bench.csvTo, text.Bytes(), 0o600)
	}
	if err != nil {
		return nil, fmt.Errorf("write the losses: %w", err)
	}
	apart, _ := found["gpu bf16 apart"].(float64)
	return []report.Figure{{
		Metric: "losses of bf16 on the GPU from those of the CPU", Value: apart, Unit: "of the fall", Bar: 0.05, Aim: 0.01, AtMost: true,
		Conditions: map[string]any{"curves": o.bench.csvTo},
	}}, nil
}
