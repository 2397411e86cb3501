package tuner

import (
	"fmt"
	"slices"

	"github.com/avgpipe/avgpipe/schedule"
)

// Memories is what every stage of a plan takes, with layers split so and micro-batches of so many samples. in is, of each row of the plan, the memory
// that its stages are in: those in one hand boundaries over there, and boundaries between two are copied.
func Memories(z Sizer, plan schedule.Plan, in []int, split [][2]int, samples, pipelines int, recompute []string) ([]Memory, error) {
	all := make([]Memory, len(split))
	for s, spec := range stageSpecs(plan, in, samples, pipelines, recompute) {
		spec.From, spec.To = split[s][0], split[s][1]
		var err error
		if all[s], err = z.Stage(spec); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// stageSpecs are those of a plan's stages, but for their layers.
func stageSpecs(plan schedule.Plan, in []int, samples, pipelines int, recompute []string) []StageSpec {
	inFlight, halves, versions := schedule.InFlightByStage(plan), schedule.HalvesByStage(plan), schedule.VersionsByStage(plan)
	inputs, outputs := schedule.Handed(plan, func(int, int) bool { return true })
	micros := plan.MicroBatches()
	landed, gradients := schedule.Landed(plan, func(row, other int) bool { return in[row] != in[other] })
	all := make([]StageSpec, plan.Stages())
	for s := range all {
		all[s] = StageSpec{
			Samples: samples, Slots: inFlight[s], WeightSlots: halves[s], Versions: versions[s], Pipelines: pipelines,
			MicroBatches: micros, Recompute: recomputeOf(recompute, s), HandedInputs: inputs[s], HandedOutputs: outputs[s], LandedInputs: landed[s], LandedGradients: gradients[s],
		}
	}
	return all
}

// recomputeOf is what a stage recomputes: one entry stands for all stages, none for no recomputation.
func recomputeOf(all []string, stage int) string {
	if len(all) == 0 {
		return ""
	}
	return all[min(stage, len(all)-1)]
}

// Shortage is a memory that its stages do not fit.
type Shortage struct {
	Device         int   // -1: the host's, which devices without one of their own share
	Stages         []int // that are in it
	Largest        int   // of them
	Need, Capacity int64
}

// Bytes is how many more are needed.
func (s Shortage) Bytes() int64 { return s.Need - s.Capacity }

func (s Shortage) String() string {
	where := fmt.Sprintf("device %d", s.Device)
	if s.Device < 0 {
		where = "the host, whose memory all devices share,"
	}
	return fmt.Sprintf("stage %d: %s lacks %s", s.Largest, where, bytesText(s.Bytes()))
}

// Shortages are those of stages that live on such devices. A device without a capacity of its own has its stages in the host's memory,
// where all messages are. A host without a capacity has no limit.
func Shortages(all []Memory, homes []int, devices []int64, host int64) (short []Shortage) {
	memories := make([]Shortage, len(devices)+1)
	put := func(in *Shortage, stage int, bytes int64) {
		if len(in.Stages) == 0 || all[stage].Total() > all[in.Largest].Total() {
			in.Largest = stage
		}
		in.Need, in.Stages = in.Need+bytes, append(in.Stages, stage)
	}
	for stage, m := range all {
		on, inHost := &memories[homes[stage]], m.Total()
		if devices[homes[stage]] > 0 {
			put(on, stage, m.OnDevice())
			inHost -= m.OnDevice()
		}
		put(&memories[len(devices)], stage, inHost)
	}
	for d, capacity := range append(slices.Clone(devices), host) {
		m := &memories[d]
		m.Device, m.Capacity = d, capacity
		if d == len(devices) {
			m.Device = -1
		}
		if capacity > 0 && m.Need > capacity {
			short = append(short, *m)
		}
	}
	return short
}

// InFlightLimits is, of each device of a plan with a stage on each, how many of the micro-batches that the plan has in flight there fit
// into so many bytes, at least as many as 1f1b has; 0 where room is 0, which is no limit.
func InFlightLimits(
	z Sizer, plan schedule.Plan, in []int, split [][2]int, samples, pipelines int, recompute []string, room func(device int) int64,
) ([]int, error) {
	limits, micros := make([]int, len(plan)), plan.MicroBatches()
	for d, spec := range stageSpecs(plan, in, samples, pipelines, recompute) {
		bytes, least := room(d), min(micros, len(plan)-d)
		if bytes == 0 {
			continue
		}
		spec.From, spec.To = split[d][0], split[d][1]
		for limits[d] = spec.Slots; limits[d] > least; limits[d]-- {
			spec.Slots, spec.HandedOutputs = limits[d], min(spec.HandedOutputs, limits[d])
			m, err := z.Stage(spec)
			if err != nil {
				return nil, err
			}
			if m.OnDevice() <= bytes {
				break
			}
		}
	}
	return limits, nil
}

// bytesText prints a number of bytes for people: "1.25 GB (1250000000 bytes)".
func bytesText(n int64) string {
	switch {
	case n >= 1e9:
		return fmt.Sprintf("%.2f GB (%d bytes)", float64(n)/1e9, n)
	case n >= 1e6:
		return fmt.Sprintf("%.1f MB (%d bytes)", float64(n)/1e6, n)
	}
	return fmt.Sprintf("%d bytes", n)
}
