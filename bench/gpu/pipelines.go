package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/avgpipe/avgpipe/bench/internal/report"
	"github.com/avgpipe/avgpipe/elastic"
	"github.com/avgpipe/avgpipe/pipeline"
	"github.com/avgpipe/avgpipe/schedule"
	"github.com/avgpipe/avgpipe/stage"
	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/device/cuda"
	"github.com/avgpipe/avgpipe/stage/layer"
	"github.com/avgpipe/avgpipe/stage/model"
)

// layout is how pipelines of stages train on one GPU, or on several in turn: each stage has a device there, with a stream for each pipeline.
type layout struct {
	training
	pipelines, stages, steps int
	gpus                     int // 0: one
	fill                     filler
}

// source gives a pipeline its data.
type source struct {
	layout
	pipeline int
}

// Fill implements pipeline.Source.
func (s source) Fill(step uint64, micro int, input, labels []byte) error {
	s.fill(s.training, step, micro+s.micros*s.pipeline, input, labels)
	return nil
}

// trace is what pipelines told.
type trace struct {
	mu      sync.Mutex
	numbers map[[2]uint64][2]float64 // by pipeline and step: loss and norm
	ended   []time.Time              // of each step of the first pipeline
	routes  []pipeline.RouteReport
}

func (t *trace) step(r pipeline.StepReport) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.numbers[[2]uint64{uint64(r.Pipeline), r.Step}] = [2]float64{r.Loss, r.GradientNorm}
	if r.Pipeline == 0 {
		t.ended = append(t.ended, time.Now())
	}
}

// run trains a layout.
func (o options) run(l layout) (told *trace, err error) {
	told = &trace{numbers: map[[2]uint64][2]float64{}}
	plan, _, err := schedule.Generate("1f1b", schedule.Request{Devices: l.stages, MicroBatches: l.micros})
	if err != nil {
		return nil, err
	}
	var devices []device.Device
	defer func() {
		for _, d := range devices {
			err = errors.Join(err, d.Close())
		}
	}()
	for row := range plan {
		on := o
		if l.gpus > 0 {
			on.ordinal = (o.ordinal + row) % l.gpus
		}
		d, err := on.open(device.QueuesFor(l.pipelines))
		if err != nil {
			return nil, err
		}
		devices = append(devices, d)
	}
	c, err := l.config(plan, devices)
	if err != nil {
		return nil, err
	}
	c.Events, c.Transports = pipeline.Events{OnStep: told.step, OnRoute: told.route}, o.transports(devices)
	runtime.GOMAXPROCS(max(runtime.GOMAXPROCS(0), pipeline.Processors(len(devices))))
	group, err := pipeline.New(c)
	if err != nil {
		return nil, err
	}
	return told, group.Run(context.Background())
}

// config is the group of a layout, by a plan with a device for each row.
func (l layout) config(plan schedule.Plan, devices []device.Device) (c pipeline.Config, err error) {
	length := l.sequence
	if length == 0 {
		length = l.model.Sequence()
	}
	ranges, err := stage.Split(l.model.Costs(layer.Size{B: l.samples, T: length}), plan.Stages())
	if err != nil {
		return c, err
	}
	method, err := elastic.NewMethod("elastic", elastic.Config{Pipelines: l.pipelines})
	if err != nil {
		return c, err
	}
	c = pipeline.Config{
		Plan: plan, MicroBatches: l.micros, Pipelines: l.pipelines, Method: method, ClipNorm: 1, FinalRound: uint64(l.steps),
		LearningRate: func(uint64) float32 { return l.rate },
		Queues:       func(row int) *device.Queues { return device.QueuesOf(devices[row]) },
	}
	apart := func(a, b int) bool { return cuda.Apart(devices[a], devices[b]) }
	inputs, outputs := schedule.Handed(plan, func(a, b int) bool { return device.Share(devices[a], devices[b]) || apart(a, b) })
	landed, gradients := schedule.Landed(plan, apart)
	placement, slots, halves := plan.Placement(), schedule.InFlightByStage(plan), schedule.HalvesByStage(plan)
	for k, r := range ranges {
		c.Stages = append(c.Stages, pipeline.StageConfig{
			Index: k,
			Build: func(number int) (stage.Stage, error) {
				return stage.New(stage.Config{
					Device: devices[placement[k]], Model: l.model, Range: r, Index: k, Count: len(ranges), Samples: l.samples, Sequence: length,
					Compute: l.compute, Slots: slots[k], WeightSlots: halves[k], HandedInputs: inputs[k], HandedOutputs: outputs[k], Seed: 5, Pipeline: number,
					LandedInputs: landed[k], LandedGradients: gradients[k],
				})
			},
			Source: func(number int) pipeline.Source { return source{l, number} },
		})
	}
	return c, nil
}

// comparePipelines trains the same with K = 1 and 2 stages, for N = 1 and 2 pipelines.
func comparePipelines(o options) (values, error) {
	m, err := model.Build("gpt2", map[string]any{"n_layer": 4, "n_head": 2, "n_embd": 16, "n_positions": 8, "vocab_size": 32, "resid_pdrop": 0.1})
	if err != nil {
		return nil, err
	}
	l := layout{training: training{model: m, samples: 2, micros: 4, rate: 0.01}, steps: 10, fill: sequence}
	if o.toy {
		l.steps = 3
	}
	found := values{}
	var wrong []error
	for _, l.pipelines = range []int{1, 2} {
		var want map[[2]uint64][2]float64
		for _, l.stages = range []int{1, 2} {
			name := fmt.Sprintf("N=%d, K=%d", l.pipelines, l.stages)
			told, err := o.run(l)
			if err != nil {
				return found, fmt.Errorf("%s: %w", name, err)
			}
			if want == nil {
				want = told.numbers
			}
			found[name+", last loss"] = told.numbers[[2]uint64{0, uint64(l.steps - 1)}][0]
			differ := told.differ(want)
			if len(want) != l.pipelines*l.steps || differ > 0 {
				wrong = append(wrong, fmt.Errorf("%s: %d of %d steps have other losses or norms than with K=1, expected the same bits", name, differ, len(want)))
			}
		}
	}
	found["headline"] = "N=1,2 x K=1,2 in float32"
	return found, errors.Join(wrong...)
}

// request is what the steps train and pipeline are to do.
type request struct {
	Family    string         `json:"family"`
	Config    map[string]any `json:"config"`
	Sequence  int            `json:"sequence"`
	Samples   int            `json:"samples"` // of a micro-batch
	Batch     int            `json:"batch"`   // of a pipeline
	Pipelines int            `json:"pipelines,omitempty"`
	Stages    int            `json:"stages,omitempty"`
	Steps     int            `json:"steps"` // measured; two more warm up
}

const warmup = 2

// training is what a request trains, in bf16.
func (o options) training() (r request, t training, err error) {
	if err := json.Unmarshal([]byte(o.request), &r); err != nil {
		return r, t, fmt.Errorf("request %.200q: %w", o.request, err)
	}
	if r.Samples < 1 || r.Batch%r.Samples != 0 {
		return r, t, fmt.Errorf("request: a batch of %d samples in micro-batches of %d: expected whole ones", r.Batch, r.Samples)
	}
	m, err := model.Build(r.Family, r.Config)
	return r, training{model: m, samples: r.Samples, micros: r.Batch / r.Samples, sequence: r.Sequence, compute: device.BF16, rate: 1e-4}, err
}

// trainShape measures a step of one stage, and the rate of products beside it.
func trainShape(o options) (values, error) {
	r, j, err := o.training()
	if err != nil {
		return nil, err
	}
	dev, err := o.open(1)
	if err != nil {
		return nil, err
	}
	peak, err := o.productRate(dev, device.BF16)
	if err != nil {
		return nil, errors.Join(err, dev.Close())
	}
	flops, err := j.flops(dev)
	if err != nil {
		return nil, errors.Join(err, dev.Close())
	}
	_, seconds, err := train(dev, j, warmup+r.Steps, scattered)
	if err = errors.Join(err, dev.Close()); err != nil {
		return nil, err
	}
	took := report.Median(seconds[warmup:])
	return values{
		"device": dev.Name(), "params": j.model.Weights(), "step_s": seconds[warmup:], "tokens_per_s": float64(r.Batch*r.Sequence) / took,
		"flops": flops, "peak": peak, "utilisation": flops / took / peak,
	}, nil
}

// trainPipelines measures the steps of pipelines.
func trainPipelines(o options) (values, error) {
	r, j, err := o.training()
	if err != nil {
		return nil, err
	}
	told, err := o.run(layout{training: j, pipelines: r.Pipelines, stages: r.Stages, steps: warmup + r.Steps, fill: scattered})
	if err != nil {
		return nil, err
	}
	took := told.ended[len(told.ended)-1].Sub(told.ended[warmup-1]).Seconds()
	if !slices.IsSortedFunc(told.ended, time.Time.Compare) || took <= 0 {
		return nil, errors.New("steps end before those before them")
	}
	return values{"tokens_per_s": float64(r.Pipelines*r.Batch*r.Sequence*r.Steps) / took}, nil
}
