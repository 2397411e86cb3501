package model_test

import (
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"unsafe"

	"github.com/avgpipe/avgpipe/stage"
	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/flat"
	"github.com/avgpipe/avgpipe/stage/layer"
	"github.com/avgpipe/avgpipe/stage/stagetest"
)

// boundaryRun is one batch of a model of torchModels in three stages.
type boundaryRun struct {
	stagetest.PipelineConfig
	bytes     int // of all messages
	inFlight  int // bytes that a micro-batch holds on the second stage
	loss      float64
	gradients map[string][]float32
}

// run computes gradients. What crosses between stages is counted and, with rounds, rounded to BF16 and back.
func (r *boundaryRun) run(t *testing.T, q *torchQuestion, rounds bool) {
	t.Helper()
	var p *stagetest.Pipeline
	r.OnMessage = func(lower int, message []byte) {
		r.bytes += len(message)
		if rounds {
			roundMessage(r.Model.Layers[p.Ranges[lower].To-1], layer.Size{B: r.Samples, T: r.Sequence, Compute: r.Compute}, message)
		}
	}
	r.Sequence = q.model.Sequence()
	p = stagetest.NewPipeline(t, r.PipelineConfig)
	q.load(t, p)
	var err error
	if r.loss, _, err = p.Run(q.batch); err != nil {
		t.Fatal(err)
	}
	r.gradients, r.inFlight = p.Gradients(), p.Stages[1].Shape().InFlightBytes
}

// roundMessage rounds what a layer in F32 hands on, or its gradient.
func roundMessage(l layer.Layer, size layer.Size, message []byte) {
	_, ports := layer.Ports(l, size)
	words := device.NewMem(unsafe.Pointer(unsafe.SliceData(message)), len(message)/4, device.F32)
	for i, p := range ports {
		if p.Type != device.F32 {
			continue
		}
		for j, v := range layer.Cut(words, ports, i).F32() {
			layer.Cut(words, ports, i).F32()[j] = flat.WidenBF16(flat.RoundBF16(v))
		}
	}
}

// TestBoundariesInBF16AreThoseOfF32Rounded holds activations and gradients that cross stages in BF16 against stages in F32 whose messages
// are rounded outside: to the bit, in half the bytes, with halves of backwards and with every recomputation.
func TestBoundariesInBF16AreThoseOfF32Rounded(t *testing.T) {
	stagetest.EachDevice(t, func(t *testing.T, dev device.Device) {
		for _, name := range slices.Sorted(maps.Keys(torchModels)) {
			of := torchModels[name]
			q := newTorchQuestion(t, of.family, of.config, rand.New(rand.NewPCG(7, 8)))
			for _, compute := range []device.Type{device.F32, device.BF16} {
				c := torchComparison{torchQuestion: q}
				base := stagetest.PipelineConfig{
					Device: dev, Model: q.model, Stages: 3, Samples: torchSamples / c.micros(), Micros: c.micros(), Compute: compute,
				}
				wide, want := boundaryRun{PipelineConfig: base}, boundaryRun{PipelineConfig: base}
				wide.run(t, q, false)
				want.run(t, q, true)
				base.Boundary = device.BF16
				for _, halves := range []bool{false, true} {
					for _, recompute := range stage.Recomputes() {
						got := boundaryRun{PipelineConfig: base}
						got.Halves, got.Recompute = halves, stage.Recompute(recompute)
						got.run(t, q, false)
						if got.loss != want.loss || !maps.EqualFunc(got.gradients, want.gradients, slices.Equal) {
							t.Errorf("%s, %v, halves %v, recompute %s: other bits than messages in f32 that are rounded", name, compute, halves, recompute)
						}
						// The loss is the same where products in BF16 are all that reads what crosses.
						if maps.EqualFunc(got.gradients, wide.gradients, slices.Equal) || got.loss > 1.01*wide.loss || got.loss < 0.99*wide.loss {
							t.Errorf("%s, %v: loss %v, in f32 %v, or the same gradients", name, compute, got.loss, wide.loss)
						}
						if got.Recompute == stage.RecomputeNone && got.inFlight > wide.inFlight {
							t.Errorf("%s, %v: a micro-batch holds %d bytes, in f32 %d: what is widened is kept", name, compute, got.inFlight, wide.inFlight)
						}
						// Masks and ids cross as they are.
						if of.family != "gnmt" && of.family != "bert" && 2*got.bytes != wide.bytes || got.bytes >= wide.bytes {
							t.Errorf("%s, %v: %d bytes crossed, in f32 %d", name, compute, got.bytes, wide.bytes)
						}
					}
				}
			}
		}
	})
}
