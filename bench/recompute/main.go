// Recompute measures what a stage saves in memory, and pays in time, when it recomputes activations in the backward
// instead of keeping them. See README.md.
package main

import (
	"context"
	"errors"
	"flag"
	"math/rand/v2"
	"runtime"
	"time"

	"github.com/avgpipe/avgpipe/bench/internal/report"
	"github.com/avgpipe/avgpipe/stage"
	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/device/pick"
	"github.com/avgpipe/avgpipe/stage/model"
)

// micros is how many micro-batches the stage has in flight: what the first of four stages holds under 1F1B.
const micros = 4

func main() {
	rounds := flag.Int("rounds", 7, "batches of each kind, in turn")
	report.Main("recompute", func(context.Context) ([]report.Figure, error) { return run(*rounds) })
}

func run(rounds int) (found []report.Figure, err error) {
	runtime.LockOSThread() // the device's threads belong to this one
	dev, _, err := pick.Open("auto", pick.Config{Threads: 1, Cores: []int{0}})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	if t, ok := dev.(device.Threaded); ok {
		if err := t.Attach(); err != nil {
			return nil, err
		}
	}
	var trials []*trial
	for _, kind := range []stage.Recompute{stage.RecomputeNone, stage.RecomputeBlock, stage.RecomputeFull} {
		t, err := newTrial(dev, kind)
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, t.stage.Close()) }()
		trials = append(trials, t)
	}
	for n := range rounds + 1 { // the first warms up
		for _, t := range trials {
			if err := t.batch(uint64(n), n > 0); err != nil {
				return nil, err
			}
		}
	}
	return figures(dev.Name(), trials), nil
}

// trial is a stage and what was measured of it.
type trial struct {
	kind              stage.Recompute
	stage             *stage.Computed
	bytes             int // of the device's memory
	input, output     [micros][]byte
	doutput           []byte
	forwards, batches []float64 // seconds: of all forwards of a batch, of the batch
}

// counted is a device that counts what is allocated on it.
type counted struct {
	device.Device
	bytes *int
}

func (c counted) Alloc(t device.Type, n int) (device.Mem, error) {
	*c.bytes += n * t.Bytes()
	return c.Device.Alloc(t, n)
}

// newTrial makes the first of two stages of a GPT-2 of 29.5M parameters: the embedding and half of the blocks.
func newTrial(dev device.Device, kind stage.Recompute) (*trial, error) {
	m, err := model.Build("gpt2", map[string]any{
		"n_layer": 8, "n_embd": 512, "n_head": 8, "n_positions": 128, "vocab_size": 4096, "tie_word_embeddings": false,
	})
	if err != nil {
		return nil, err
	}
	t := &trial{kind: kind}
	t.stage, err = stage.New(stage.Config{
		Device: counted{dev, &t.bytes}, Model: m, Range: stage.Range{From: 0, To: 5}, Count: 2, Samples: 4, Slots: micros,
		Recompute: kind, Seed: 1,
	})
	if err != nil {
		return nil, err
	}
	s := t.stage.Shape()
	random := rand.New(rand.NewPCG(1, 2))
	for i := range micros {
		t.input[i], t.output[i] = stage.NewBoundary(s.InputBytes), stage.NewBoundary(s.OutputBytes)
		ids := make([]int32, s.InputBytes/4)
		for j := range ids {
			ids[j] = int32(random.IntN(m.Vocabulary()))
		}
		copy(t.input[i], device.IntBytes(ids))
	}
	t.doutput = stage.NewBoundary(s.OutputBytes)
	return t, nil
}

// batch runs all forwards, then all backwards.
func (t *trial) batch(step uint64, keep bool) error {
	t.stage.ZeroGradients()
	micro := func(i int) stage.Micro { return stage.Micro{Step: step, Index: i, Weight: 1.0 / micros} }
	start := time.Now()
	for i := range micros {
		if err := t.stage.Forward(micro(i), stage.OnHost(t.input[i]), nil, stage.OnHost(t.output[i])); err != nil {
			return err
		}
	}
	forward := time.Since(start)
	for i := range micros {
		copy(t.doutput, t.output[i]) // some gradient of the right size
		if err := t.stage.Backward(micro(i), stage.Whole, stage.OnHost(t.doutput), stage.Boundary{}); err != nil {
			return err
		}
	}
	if keep {
		t.forwards = append(t.forwards, forward.Seconds())
		t.batches = append(t.batches, time.Since(start).Seconds())
	}
	return nil
}

// figures compares the kinds with the first, which keeps everything.
func figures(dev string, trials []*trial) []report.Figure {
	var all []report.Figure
	none := trials[0]
	inFlight, forward := none.stage.Shape().InFlightBytes, report.Median(none.forwards)
	for _, t := range trials[1:] {
		conditions := map[string]any{
			"device": dev, "layers": "embedding and 4 blocks of width 512", "samples": 4, "positions": 128, "micro_batches_in_flight": micros,
			"bytes_of_each": t.stage.Shape().InFlightBytes, "bytes_of_each_without": inFlight,
			"stage_bytes": t.bytes, "stage_bytes_without": none.bytes,
			"batch_s": report.Median(t.batches), "batch_s_without": report.Median(none.batches), "forward_s_without": forward,
		}
		// Each batch against the one beside it, so that the machine's other load counts on both sides.
		var extra []float64
		for i := range t.batches {
			extra = append(extra, (t.batches[i]-none.batches[i])/forward)
		}
		all = append(all,
			report.Figure{
				Metric: "activation memory saved, " + string(t.kind), Unit: "of 1",
				Value: float64(none.bytes-t.bytes) / float64(micros*inFlight), Bar: 0.7, Aim: 0.9, Conditions: conditions,
			},
			report.Figure{
				Metric: "time added, in forward passes, " + string(t.kind), Unit: "forwards",
				Value: report.Median(extra), Bar: 1, Aim: 1, AtMost: true, Conditions: conditions,
			})
	}
	return all
}
