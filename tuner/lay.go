package tuner

import (
	"fmt"
	"slices"
)

// Lay cuts and plans a job whose counts, schedule and recomputation are all given, for its devices and the links between them: its space has one target and one
// of each. Where the devices do not hold it, or its schedule refuses it, the error says so.
//
// Partition makes the slowest stage or message as fast as can be. Where micro-batches are few, a batch also waits for the pipeline to fill, and for
// messages both ways, so from that cut up to so many others are tried by simulation.
func (s Space) Lay(tries int) (*Candidate, error) {
	if err := s.Validate(); err != nil {
		return nil, err
	}
	if len(s.Targets) != 1 || len(s.Pipelines) != 1 || len(s.MicroBatches) != 1 || len(s.Schedules) != 1 {
		return nil, fmt.Errorf("tuner: lay out %d ways to use the devices, %d counts of pipelines, %d of micro-batches and %d schedules: want one of each",
			len(s.Targets), len(s.Pipelines), len(s.MicroBatches), len(s.Schedules))
	}
	l, err := s.predict(s.Targets[0], s.Pipelines[0], s.MicroBatches[0], s.Schedules[0])
	if err == nil && l.Verdict != "" {
		err = fmt.Errorf("tuner: %s", l.Reason)
	}
	if err != nil {
		return nil, err
	}
	return &l.refine(tries).Candidate, nil
}

// refine shifts neighbouring boundaries between stages, the least first, for as long as that makes a batch shorter.
func (l *layout) refine(tries int) *layout {
	shifts := shiftsOf(len(l.Split), len(l.profile.Layers))
	for moved := true; moved; {
		moved = false
		for _, by := range shifts {
			split := by.of(l.Split)
			if split == nil {
				continue
			}
			if tries--; tries < 0 {
				return l
			}
			other := l.changed(func(o *layout) error {
				o.Split = split
				return nil
			})
			if other != nil && other.Verdict == "" && other.better(l) {
				l, moved = other, true
			}
		}
	}
	return l
}

// shift moves so many boundaries, from that behind the first stage on, by so many layers.
type shift struct{ first, boundaries, layers int }

// shiftsOf are all that there can be: of one boundary first, by few layers first.
func shiftsOf(stages, layers int) (all []shift) {
	for n := 1; n < stages; n++ {
		for first := range stages - n {
			for by := 1; by < layers; by++ {
				all = append(all, shift{first, n, by}, shift{first, n, -by})
			}
		}
	}
	return all
}

// of is a cut after the shift; nil where a stage would be left without a layer.
func (m shift) of(split [][2]int) [][2]int {
	if before, after := split[m.first], split[m.first+m.boundaries]; before[1]+m.layers <= before[0] || after[0]+m.layers >= after[1] {
		return nil
	}
	split = slices.Clone(split)
	for s := m.first; s < m.first+m.boundaries; s++ {
		split[s][1] += m.layers
		split[s+1][0] += m.layers
	}
	return split
}
