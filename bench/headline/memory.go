package main

import (
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/avgpipe/avgpipe/bench/internal/report"
	"github.com/avgpipe/avgpipe/bench/internal/rig"
)

// memory is a record: what a configuration holds and sends. The daemon tells it without a run, to the byte; part speed compares.
type memory struct {
	Model        string  `json:"model"`
	Method       string  `json:"method"`
	Schedule     string  `json:"schedule"`
	Devices      int     `json:"devices"`
	Link         float64 `json:"link"` // which a schedule may be shaped by
	Pipelines    int     `json:"pipelines"`
	Micros       int     `json:"micro_batches"`
	DeviceBytes  []int64 `json:"device_bytes"`
	MessageBytes int64   `json:"message_bytes"` // the longest between two stages
	WeightBytes  int64   `json:"weight_bytes"`  // of the model
}

func (m memory) key() string {
	return fmt.Sprintf("%s %s K=%d c=%g N=%d M=%d %s", m.Model, m.Method, m.Devices, m.Link, m.Pipelines, m.Micros, m.Schedule)
}

// memoryOf is the record of a configuration before it is measured.
func (w workload) memoryOf(c configuration) memory {
	return memory{Model: w.name, Method: c.name, Schedule: c.schedule, Devices: c.devices, Link: c.link, Pipelines: c.pipelines, Micros: c.micros}
}

// settle puts in what tuning would choose.
func (c configuration) settle() (configuration, error) {
	if c.side != averaged { // all counts are given
		return c, nil
	}
	chosen, err := c.choose(c.micros)
	c.pipelines, c.schedule = chosen.pipelines, chosen.schedule
	return c, err
}

// measureMemory asks for all that is not yet recorded.
func measureMemory(ctx context.Context, d *rig.Daemon, o options) ([]report.Figure, error) {
	recorded, err := records[memory](o.results, memoryFile)
	if err != nil {
		return nil, err
	}
	for _, w := range o.models {
		for _, c := range o.configurations(w) {
			if c, err = c.settle(); err != nil {
				return nil, err
			}
			m := w.memoryOf(c)
			if slices.ContainsFunc(recorded, func(r memory) bool { return r.key() == m.key() }) {
				continue
			}
			s, err := w.shapeOf(ctx, d, o, c)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", m.key(), err)
			}
			m.DeviceBytes, m.MessageBytes, m.WeightBytes = s.deviceBytes, s.messageBytes, s.weightBytes
			if err := add(o.results, memoryFile, m); err != nil {
				return nil, err
			}
		}
	}
	return nil, nil
}

// weightsOf is the model's weights in messages; infinite where nobody has asked, so that nothing is compared with it.
func (m measured) weightsOf(w workload) float64 {
	for _, r := range m.memory {
		if r.Model == w.name && r.MessageBytes > 0 {
			return float64(r.WeightBytes) / float64(r.MessageBytes)
		}
	}
	return math.Inf(1)
}

// bytesOf is what the device holds that holds most; 0 where nobody has asked.
func (m measured) bytesOf(w workload, c configuration) int64 {
	key := w.memoryOf(c).key()
	for _, r := range m.memory {
		if r.key() == key {
			return slices.Max(r.DeviceBytes)
		}
	}
	return 0
}
