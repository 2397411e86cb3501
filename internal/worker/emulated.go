package worker

import (
	"slices"
	"time"

	"github.com/avgpipe/avgpipe/internal/wire"
	"github.com/avgpipe/avgpipe/job"
	"github.com/avgpipe/avgpipe/stage/device/emulated"
)

// emulate is what a job asks of emulated device d, on which there may be any of so many stages.
func emulate(e job.Emulated, d, stages int) emulated.Config {
	c := emulated.Config{
		Memory: int64(job.At(e.Memory, d)), FLOPs: job.At(e.FLOPs, d), Bandwidth: job.At(e.Bandwidth, d), Launch: e.Launch,
	}
	if !slices.ContainsFunc(e.Forward, func(t time.Duration) bool { return t > 0 }) {
		return c // operations say what passes take
	}
	for s := range stages {
		t := emulated.Times{Forward: job.At(e.Forward, s), Backward: job.At(e.Backward, s), Step: job.At(e.Step, s)}
		if t.Backward == 0 {
			t.Backward = 2 * t.Forward // two products for each one of the forward
		}
		c.Stages = append(c.Stages, t)
	}
	return c
}

// network has the lines between the emulated devices of a job; nil for other kinds, and where links take no time.
func network(spec job.Devices, devices int) *wire.Network {
	if spec.Kind != job.KindEmulated {
		return nil
	}
	return wire.NewNetwork(func(from, to int) wire.Shape {
		link := min(from, to)
		if link == 0 && max(from, to) == devices-1 && devices > 2 {
			link = devices - 1 // that between the last and the first
		}
		return wire.Shape{
			Latency:   job.At(spec.Emulated.Link.Latency, link),
			Bandwidth: job.At(spec.Emulated.Link.Bandwidth, link),
		}
	})
}
