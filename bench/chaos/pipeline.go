package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/avgpipe/avgpipe/bench/internal/report"
	"github.com/avgpipe/avgpipe/bench/internal/rig"
	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/schedule"
	"github.com/avgpipe/avgpipe/tuner"
)

// What a job of three stages on three hosts is: each stage has a host of its own, on a device that takes time and no core, so that two cores are enough for
// the links, whose encryption is all that is computed.
const (
	lineStages  = 3
	lineMicros  = 4
	lineForward = 24 * time.Millisecond // of a micro-batch; a backward takes twice as long
	lineLasts   = 30 * time.Second      // that training is watched for
	lineMeasure = 2 * time.Minute       // for the coordinator to measure the links
)

// threeHosts is that job. A micro-batch of 4 samples hands on 4 x 64 x 512 numbers.
var threeHosts = fmt.Sprintf(`version: 1
name: three-hosts
model: {family: gpt2, config: {n_layer: 3, n_head: 8, n_embd: 512, n_positions: 64, vocab_size: 256}}
data: {files: [corpus.txt]}
optimizer: {name: adamw, lr: 1e-3, clip_norm: 0}
train: {steps: 2000000, batch: %d, eval_every: 2000000}
stages: %d
pipelines: 1
micro_batches: %d
schedule: 1f1b
boundary_precision: PRECISION
center: {commit_every: 1000000}
devices: {kind: emulated, emulated: {forward: %v}}
placement: spread
`, 4*lineMicros, lineStages, lineMicros, lineForward)

// lines are the links that a pipeline is held against the simulator on.
var lines = []struct {
	name, precision string
	bits            int64
	bar, aim        float64 // percent
}{
	{"1 Gbit/s", "f32", 1e9, 5, 2},
	{"100 Mbit/s with bf16 boundaries", "bf16", 1e8, 10, 5},
}

// measurePipeline trains a pipeline over three hosts whose links are limited, and holds its batch time against what the simulator predicts with the links that the
// coordinator has measured.
func measurePipeline(ctx context.Context, o options) (figures []report.Figure, err error) {
	o.hosts, o.inside = lineStages, false // its shards are larger than the small disks of trials
	for _, l := range lines {
		w, err := newTestbed(ctx, o, 0)
		if err != nil {
			return figures, err
		}
		figure, err := w.line(ctx, l.bits, l.precision)
		if err = errors.Join(err, w.end(ctx), w.remove(ctx)); err != nil {
			return figures, fmt.Errorf("a pipeline over links of %s: %w", l.name, err)
		}
		figure.Metric, figure.Bar, figure.Aim = "batch of a pipeline over three hosts beside the simulator's, links of "+l.name, l.bar, l.aim
		figures = append(figures, figure)
	}
	return figures, nil
}

// line starts a cluster with such links and trains the pipeline.
func (w *testbed) line(ctx context.Context, bits int64, precision string) (f report.Figure, err error) {
	for _, h := range w.hosts {
		if err := w.network.Limit(ctx, h.on.Name, bits); err != nil {
			return f, err
		}
	}
	if err := w.start(ctx); err != nil {
		return f, err
	}
	var nodes []api.NodeStatus
	if err := rig.Poll(ctx, lineMeasure, "links that were measured", func() bool {
		known := 0
		_ = w.any(ctx, func(c *api.Client) (err error) { // who does not lead yet says so
			nodes, err = c.Nodes(ctx)
			return err
		})
		for _, n := range nodes {
			known += len(n.Links)
		}
		return known == lineStages*(lineStages-1)
	}); err != nil {
		return f, err
	}
	k := kind{name: "three-hosts", source: strings.Replace(threeHosts, "PRECISION", precision, 1)}
	id, err := w.submit(ctx, &k)
	if err != nil {
		return f, err
	}
	j := &trialJob{kind: &k, id: id}
	defer func() { err = errors.Join(err, w.cancel(ctx, j)) }()
	s, err := w.watched(ctx, id)
	if err != nil {
		return f, err
	}
	predicted, err := predictLine(&s, nodes)
	if err != nil {
		return f, err
	}
	return report.Figure{
		Value: 100 * math.Abs(*s.BatchS/predicted-1), Unit: "%", AtMost: true,
		Conditions: map[string]any{
			"hosts": len(w.hosts), "processor": processor(), "batch_s": *s.BatchS, "predicted_s": predicted, "message_bytes": s.LinkStatus[0].MessageBytes,
			"message_s": messages(&s), "links": nodes[0].Links,
		},
	}, nil
}

// watched is the status of a job after it has trained for a while on all hosts.
func (w *testbed) watched(ctx context.Context, id string) (s api.JobStatus, err error) {
	whole := func() bool {
		s, err = w.job(ctx, id)
		return err == nil && s.State == api.Running && s.BatchS != nil && len(s.StageStatus) == lineStages && len(s.LinkStatus) == lineStages-1
	}
	if err := rig.Poll(ctx, jobBound, "a pipeline that trains", whole); err != nil {
		return s, err
	}
	rig.Pause(ctx, lineLasts)
	err = rig.Poll(ctx, jobBound, "a pipeline that trains on", whole)
	for k, l := range s.LinkStatus {
		if err == nil && l.Network == nil {
			err = fmt.Errorf("stages %d and %d are on one host", k, k+1)
		}
	}
	return s, err
}

// predictLine is what the simulator says of a batch, with the links as they were measured and messages as they are.
func predictLine(s *api.JobStatus, nodes []api.NodeStatus) (seconds float64, err error) {
	plan, _, err := schedule.Generate(s.Schedule, schedule.Request{Devices: lineStages, MicroBatches: lineMicros})
	if err != nil {
		return 0, err
	}
	costs := schedule.Uniform(lineStages, lineForward.Seconds(), 2*lineForward.Seconds(), 0)
	costs.Bandwidth, costs.MessageBytes = make([]float64, lineStages-1), make([]int64, lineStages-1)
	for k, l := range s.LinkStatus {
		link, err := slowestLink(nodes)
		if err != nil {
			return 0, err
		}
		costs.Link[k], costs.Bandwidth[k], costs.MessageBytes[k] = link.RoundTripS/2, link.BitsPerS/8, l.MessageBytes
	}
	return tuner.Period(plan, costs, schedule.Load{Pipelines: 1, AverageEvery: 1})
}

// slowestLink is the slowest of the links, which are all alike.
func slowestLink(nodes []api.NodeStatus) (slowest api.NodeLink, err error) {
	for _, n := range nodes {
		for _, l := range n.Links {
			if slowest.BitsPerS == 0 || l.BitsPerS < slowest.BitsPerS {
				slowest = l
			}
		}
	}
	if slowest.BitsPerS == 0 {
		return slowest, errors.New("no link was measured")
	}
	return slowest, nil
}

// messages are what messages were seen to take, down and up each link, in seconds.
func messages(s *api.JobStatus) (all []float64) {
	for _, l := range s.LinkStatus {
		for _, seconds := range []*float64{l.DownS, l.UpS} {
			if seconds != nil {
				all = append(all, *seconds)
			}
		}
	}
	return all
}
