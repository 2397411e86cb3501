package tuner

import (
	"slices"
	"testing"
)

// messages prices stages as layers does, and messages beside them.
type messages struct {
	layers
	bytes int64
}

func (m messages) Stage(s StageSpec) (Memory, error) {
	memory, err := m.layers.Stage(s)
	memory.Boundaries = int64(s.Pipelines) * m.bytes
	return memory, err
}

// Neither the shortest warm-up nor any recomputation is enough by itself: both together are, and no more of either than it takes.
func TestRecomputationAndAShorterWarmUpAreTriedTogether(t *testing.T) {
	p := profileOf(8, 4)
	for d := range p.Links {
		p.Links[d].LatencySeconds = 20e-3 // so that afp runs far ahead
	}
	s := spaceOf(p)
	s.Pipelines, s.MicroBatches, s.Schedules, s.Recompute = []int{1}, []int{16}, []string{"afp"}, []string{"none", "block"}
	const parameters, block = 8e6, 1e5 // of two layers, with gradients and state; what one of them holds for a micro-batch of one sample
	// The first stage holds 2 blocks a micro-batch, an eighth of them when it computes them again, beside one block.
	for d := range p.Devices {
		p.Devices[d].CapacityBytes = parameters + block + 6*2*block/8
	}
	out, err := Search(s)
	if err != nil {
		t.Fatal(err)
	}
	c := out.Ranked[0]
	if !slices.Contains(c.Recompute, "block") || c.Warmup[0] < 4 || c.Warmup[0] > 6 || c.Warmup[3] != 1 {
		t.Errorf("recompute %v, warm-up %v; want blocks, and the 4 to 6 forwards ahead that fit", c.Recompute, c.Warmup)
	}
	s.Recompute = []string{"none"}
	if out, err := Search(s); err == nil {
		t.Errorf("without recomputation fits %+v", out.Ranked[0].Warmup)
	}
}

// Messages lie in the host's memory, whatever the devices hold.
func TestMessagesTakeTheHostsMemory(t *testing.T) {
	p := profileOf(4, 2)
	p.Sizer = messages{layers{parameters: 1e6, inFlight: 1e5}, 1e6}
	s := spaceOf(p)
	s.Pipelines, s.MicroBatches, s.Schedules = []int{1}, []int{16}, []string{"gpipe"}
	const own = 8e6 + 16*2*1e5
	for d := range p.Devices {
		p.Devices[d].CapacityBytes = own
	}
	for host, fits := range map[int64]bool{0: true, 2e6: true, 2e6 - 1: false} {
		p.HostBytes = host
		if _, err := Search(s); (err == nil) != fits {
			t.Errorf("a host of %d bytes: %v, want fits %v", host, err, fits)
		}
	}
	p.HostBytes = 0
	for d := range p.Devices {
		p.Devices[d].CapacityBytes = own - 1
	}
	if _, err := Search(s); err == nil {
		t.Error("a byte less fits")
	}
}

// A stage that computes again is slower, so afp has one before it run further ahead, and not into its memory.
func TestStagesAheadOfARecomputingOneKeepToTheirMemory(t *testing.T) {
	p := profileOf(16, 8)
	p.Devices[0].CapacityBytes = 8e6 + 8*2*1e5 // what 1f1b has in flight there, of two layers
	for d := range p.Devices[1:] {
		p.Devices[1+d].CapacityBytes = 8e6 + 2*2*1e5 // enough for the last two stages
	}
	s := spaceOf(p)
	for i := range p.Layers { // backwards of two forwards, and nothing else
		l := &p.Layers[i]
		l.Forward, l.Backward = constant(5e-3), constant(10e-3)
	}
	for d := range p.Links {
		p.Links[d].LatencySeconds = 0
	}
	s.Batch, s.Pipelines, s.MicroBatches, s.Schedules, s.Recompute = 32, []int{1}, []int{32}, []string{"afp"}, []string{"none", "block"}
	out, err := Search(s)
	if err != nil {
		t.Fatal(err)
	}
	c := out.Ranked[0]
	if !slices.Equal(c.Recompute, []string{"none", "block", "block", "block", "block", "block", "none", "none"}) || c.Warmup[0] != 8 {
		t.Errorf("recompute %v, warm-up %v", c.Recompute, c.Warmup)
	}
}

// constant is a curve that does not depend on the samples.
func constant(value float64) Curve {
	return Curve{Samples: []int{1, 2}, Values: []float64{value, value}}
}
