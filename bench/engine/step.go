package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"runtime"
	"syscall"
	"time"

	"github.com/avgpipe/avgpipe/bench/internal/report"
	"github.com/avgpipe/avgpipe/stage"
	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/device/pick"
	"github.com/avgpipe/avgpipe/stage/model"
)

// shape is a GPT-2 with an untied head, and the batch it is trained on.
type shape struct {
	Name       string `json:"name"`
	Layers     int    `json:"layers"`
	Width      int    `json:"width"`
	Heads      int    `json:"heads"`
	Sequence   int    `json:"sequence"`
	Batch      int    `json:"batch"`
	Vocabulary int    `json:"vocabulary"`
	Micro      int    `json:"micro"` // samples of a micro-batch
	Steps      int    `json:"steps"` // measured; two more warm up
	Precision  string `json:"precision"`
	Generate   bool   `json:"generate,omitempty"` // continue a sequence instead of training
}

var shapes = []shape{
	{"29.5M, T=128", 8, 512, 8, 128, 8, 4096, 8, 6, "", false},
	{"11.7M, T=256", 6, 384, 6, 256, 8, 1024, 8, 6, "", false},
	{"34.8M, T=128, wide", 4, 768, 12, 128, 8, 4096, 8, 6, "", false},
	{"29.5M, T=128, micro-batches of 2", 8, 512, 8, 128, 8, 4096, 2, 6, "", false},
	{"29.5M, T=128, micro-batches of 1", 8, 512, 8, 128, 8, 4096, 1, 6, "", false},
}

// compute is the type in which products take their operands.
func (s shape) compute() device.Type {
	if s.Precision == device.BF16.String() {
		return device.BF16
	}
	return device.F32
}

// warmup is how many steps come before the measured ones.
const warmup = 2

// outcome is what a side prints.
type outcome struct {
	Device        string  `json:"device"`
	Parameters    int     `json:"params"`
	TokensPerS    float64 `json:"tokens_per_s"`
	StepGFLOPS    float64 `json:"gflops"`
	ProductGFLOPS float64 `json:"product_gflops"`
	PeakBytes     float64 `json:"peak_bytes"` // of the process while it trains; 0: while it runs
}

// measureHere trains or uses a shape in this process, on the first core, and prints the outcome.
func measureHere(text string, out io.Writer) (err error) {
	var s shape
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		return fmt.Errorf("shape %.100q: %w", text, err)
	}
	runtime.LockOSThread() // the device's threads belong to this one
	dev, _, err := pick.Open("cpu", pick.Config{Threads: 1, Cores: []int{0}})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	if t, ok := dev.(device.Threaded); ok {
		if err := t.Attach(); err != nil {
			return err
		}
	}
	o := outcome{Device: dev.Name()}
	m, err := model.Build("gpt2", map[string]any{
		"n_layer": s.Layers, "n_embd": s.Width, "n_head": s.Heads, "n_positions": s.Sequence, "vocab_size": s.Vocabulary,
		"tie_word_embeddings": false,
	})
	if err != nil {
		return err
	}
	run := trainShape
	if s.Generate {
		run = generateShape
	}
	if err := run(dev, s, m, &o); err != nil {
		return err
	}
	return json.NewEncoder(out).Encode(o)
}

// trainShape times whole training steps: zeroing, forward, loss and backward of each micro-batch, clipping norm and AdamW. After each it
// times the raw products, so that a processor that slows down slows both.
func trainShape(dev device.Device, s shape, m *model.Model, o *outcome) (err error) {
	st, err := stage.New(stage.Config{Device: dev, Model: m, Samples: s.Micro, Slots: 1, Seed: 1, Compute: s.compute()})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, st.Close()) }()
	input, labels := stage.NewBoundary(st.Shape().InputBytes), stage.NewBoundary(st.Shape().LabelBytes)
	ids := make([]int32, s.Micro*s.Sequence)
	random := rand.New(rand.NewPCG(1, 2))
	fill := func(to []byte) {
		for i := range ids {
			ids[i] = int32(random.IntN(s.Vocabulary))
		}
		copy(to, device.IntBytes(ids))
	}
	next := func() {
		fill(input)
		fill(labels)
	}
	raw := rawProducts(s)
	var seconds []float64
	for n := range warmup + s.Steps {
		start := time.Now()
		if err := step(st, s, uint64(n), next, input, labels); err != nil {
			return err
		}
		if n < warmup {
			if o.PeakBytes, err = peakBytes(); err != nil { // the raw products need more
				return err
			}
			continue
		}
		seconds = append(seconds, time.Since(start).Seconds())
		for i := range raw {
			if err := raw[i].measure(dev); err != nil {
				return err
			}
		}
	}
	o.ProductGFLOPS = productRate(raw)
	took, tokens := report.Median(seconds), float64(s.Batch*s.Sequence)
	o.Parameters, o.TokensPerS = m.Weights(), tokens/took
	// What the products of a step need: 2 operations for each weight of a product and token, twice that backward; the same for attention's
	// scores and sums, of the positions that a position sees.
	matrices := m.Weights() - s.Vocabulary*s.Width - s.Sequence*s.Width
	o.StepGFLOPS = (6*float64(matrices) + 6*float64(s.Layers*(s.Sequence+1)*s.Width)) * tokens / took / 1e9
	return nil
}

// peakBytes is the largest memory that the process has had.
func peakBytes() (float64, error) {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		return 0, fmt.Errorf("memory use: %w", err)
	}
	return float64(usage.Maxrss) * 1024, nil // kilobytes on Linux
}

// step is one training step; next fills input and labels for a micro-batch.
func step(st *stage.Computed, s shape, n uint64, next func(), input, labels []byte) error {
	st.ZeroGradients()
	for i := range s.Batch / s.Micro {
		next()
		micro := stage.Micro{Step: n, Index: i, Weight: float32(s.Micro) / float32(s.Batch)}
		if err := st.Forward(micro, stage.OnHost(input), labels, stage.Boundary{}); err != nil {
			return err
		}
		if err := st.Backward(micro, stage.Whole, stage.Boundary{}, stage.Boundary{}); err != nil {
			return err
		}
	}
	if _, err := st.Loss(); err != nil {
		return err
	}
	squared, err := st.SquaredNorm(0)
	if err != nil {
		return err
	}
	return st.Step(stage.Hyper{Step: n, LearningRate: 1e-3, GradScale: stage.ClipFactor(squared, 1)}, nil)
}

// rawProduct is one of the products of a step, on operands that lie ready.
type rawProduct struct {
	product device.Product
	operand device.Type // of A and B, and of C where nothing is summed up in it
	count   int         // times in a step
	seconds []float64   // of each call
}

// rawProducts are the forward, the input gradient and the weight gradient of each matrix of the model, as often as a step has them, and
// nothing else. In bf16 they are listed with bf16 and with f32 operands.
func rawProducts(s shape) (all []rawProduct) {
	rows, d, micros := s.Micro*s.Sequence, s.Width, s.Batch/s.Micro
	types := []device.Type{device.F32}
	if s.compute() != device.F32 {
		types = append(types, s.compute())
	}
	for _, t := range types {
		for _, p := range []struct{ in, out, count int }{
			{d, 3 * d, s.Layers}, {d, d, s.Layers}, {d, 4 * d, s.Layers}, {4 * d, d, s.Layers}, {d, s.Vocabulary, 1},
		} {
			gradient := device.Product{M: p.in, N: p.out, K: rows, TransA: true} // dw = x^T dy, of the first micro-batch
			sum := gradient                                                      // dw += x^T dy, of the others
			sum.Accumulate = true
			all = append(all,
				rawProduct{product: device.Product{M: rows, N: p.out, K: p.in}, operand: t, count: micros * p.count},               // y = x w
				rawProduct{product: device.Product{M: rows, N: p.in, K: p.out, TransB: true}, operand: t, count: micros * p.count}, // dx = dy w^T
				rawProduct{product: gradient, operand: t, count: p.count})
			if micros > 1 {
				all = append(all, rawProduct{product: sum, operand: t, count: (micros - 1) * p.count})
			}
		}
	}
	return all
}

// evicted is several times what the caches of a core hold, in elements of F32.
const evicted = 128 << 20 / 4

// measure times two calls after a first one that is not counted, each with its operands cold: other memory is read before it. Writing
// zeros would not do: processors write long runs of them past the caches.
func (p *rawProduct) measure(dev device.Device) error {
	var operands [4]device.Mem
	m := p.product
	types := [4]device.Type{p.operand, p.operand, p.operand, device.F32}
	if m.TransA {
		types[0] = device.F32 // weight gradients are f32
	}
	for i, n := range [4]int{m.M * m.N, m.M * m.K, m.K * m.N, evicted} {
		mem, err := dev.Alloc(types[i], n)
		if err != nil {
			return err
		}
		defer dev.Free(mem)
		operands[i] = mem
	}
	sum, err := dev.Alloc(device.F64, 1)
	if err != nil {
		return err
	}
	defer dev.Free(sum)
	dev.Do(&device.Zero{X: operands[3]}) // memory that nobody wrote is one page
	for n := range 1 + 2 {
		dev.Do(&device.SquaredNorm{Sum: sum, X: operands[3]})
		start := time.Now()
		dev.Do(&device.MatMul{C: operands[0], A: operands[1], B: operands[2], Product: m})
		if n >= 1 {
			p.seconds = append(p.seconds, time.Since(start).Seconds())
		}
	}
	return dev.Synchronize()
}

// productRate is the rate of the model's products by the median time of each, in GFLOP/s. In bf16 it is the higher of those on
// bf16 and on f32 operands: some processors have fewer units for bf16 than for f32, and nothing forces a step to use them.
func productRate(all []rawProduct) float64 {
	var flops, seconds [device.BF16 + 1]float64
	for _, p := range all {
		m := p.product
		flops[p.operand] += 2 * float64(m.M) * float64(m.N) * float64(m.K) * float64(p.count)
		seconds[p.operand] += report.Median(p.seconds) * float64(p.count)
	}
	best := 0.0
	for t := range flops {
		if seconds[t] > 0 {
			best = max(best, flops[t]/seconds[t]/1e9)
		}
	}
	return best
}
