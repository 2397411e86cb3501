package profile

import (
	"math"
	"slices"

	"github.com/avgpipe/avgpipe/internal/spec"
	"github.com/avgpipe/avgpipe/internal/trace"
	"github.com/avgpipe/avgpipe/internal/worker"
	"github.com/avgpipe/avgpipe/job"
	"github.com/avgpipe/avgpipe/schedule"
	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/tuner"
)

// fitToMemory has the stages of a run recompute what their devices cannot hold, so that a job that fits in no other way is measured.
// The time of that is subtracted again: see withoutRecompute.
func (s *subject) fitToMemory(r *reading) error {
	recompute, short := make([]string, len(r.trial.Split)), false
	for _, m := range s.memories(len(r.trial.Plan)) {
		kind, err := s.fitting(r, m)
		if err != nil {
			return err
		}
		for k, home := range r.homes {
			if slices.Contains(m.devices, home) {
				recompute[k], short = kind, short || kind != spec.RecomputeKinds[0]
			}
		}
	}
	if short {
		r.trial.Job.Recompute = recompute
	}
	return nil
}

// memory is what some devices hold together; 0 bytes are no limit.
type memory struct {
	devices []int
	bytes   int64
}

// memories are those of so many devices: of each its own, or the host's for all.
func (s *subject) memories(devices int) (all []memory) {
	host := memory{bytes: min(s.MemoryBytes, availableMemory())} // a reading runs now, beside what other jobs hold
	bytes, of := spec.Memories(&s.request.Spec.Job, devices)
	for _, own := range bytes {
		all = append(all, memory{bytes: own})
	}
	for d, in := range of {
		if all[in].bytes == 0 {
			host.devices = append(host.devices, d)
		} else {
			all[in].devices = append(all[in].devices, d)
		}
	}
	return append(slices.DeleteFunc(all, func(m memory) bool { return m.bytes == 0 }), host)
}

// fitting is the cheapest kind of recomputation with which a memory holds the stages of its devices; none where all are too much.
func (s *subject) fitting(r *reading, m memory) (string, error) {
	for _, kind := range spec.RecomputeKinds {
		bytes, err := s.held(r, m.devices, kind)
		if err != nil {
			return "", err
		}
		if m.bytes == 0 || bytes <= m.bytes {
			return kind, nil
		}
	}
	return spec.RecomputeKinds[0], nil // and the run says what is short
}

// held is what the stages of some devices allocate in a reading.
func (s *subject) held(r *reading, devices []int, kind string) (total int64, err error) {
	_, in := spec.Memories(&s.request.Spec.Job, len(r.trial.Plan))
	all, err := tuner.Memories(s.Sizer, r.trial.Plan, in, r.trial.Split, r.samples, r.pipelines, []string{kind})
	for k, m := range all {
		if slices.Contains(devices, r.homes[k]) {
			total += m.OnDevice()
		}
	}
	return total, err
}

// withoutRecompute returns how long an op takes where nothing is recomputed: a backward that recomputes takes its stage's forward less.
func withoutRecompute(r reading, result worker.TrialResult) func(trace.Span) float64 {
	forwards := map[int][]float64{}
	for _, e := range result.Spans {
		if e.Kind == trace.Compute && e.Work == schedule.Forward {
			forwards[e.Stage] = append(forwards[e.Stage], (e.End - e.Start).Seconds())
		}
	}
	again := map[int]float64{}
	for k, times := range forwards {
		if kind := job.At(r.trial.Job.Recompute, k); kind != "" && kind != spec.RecomputeKinds[0] {
			again[k] = median(times)
		}
	}
	return func(e trace.Span) float64 {
		took := (e.End - e.Start).Seconds()
		if e.Kind == trace.Compute && (e.Work == schedule.Backward || e.Work == schedule.BackwardInput) {
			took = max(0, took-again[e.Stage])
		}
		return took
	}
}

// availableMemory is what this host can give to a job now, in bytes; 0 when it does not say.
func availableMemory() int64 {
	available := device.HostAvailable()
	if available == math.MaxInt64 {
		return 0
	}
	return max(1, int64((1-spec.Reserve)*float64(available)))
}
