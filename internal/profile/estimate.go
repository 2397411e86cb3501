package profile

import (
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/avgpipe/avgpipe/internal/words"
	"github.com/avgpipe/avgpipe/job"
	"github.com/avgpipe/avgpipe/tuner"
)

// What a price model assumes, before anything of a job is measured.
const (
	assumedCPU = 1e11 // floating-point operations that a thread does in a second: what AVX-512 does in small products
	assumedRef = 1e9  // the same, of the plain Go device
	runSeconds = 0.5  // of a run, beside its batches: devices are opened, memory is touched, what scatters is read again
)

// assumedFLOPs is how many floating-point operations a device of a target does in a second, by assumption, or as the job says of
// emulated ones.
func (s *subject) assumedFLOPs(t tuner.Target) float64 {
	d := s.request.Spec.Job.Devices
	perThread := assumedCPU
	switch given := job.At(d.Emulated.FLOPs, 0); {
	case d.Kind == job.KindEmulated && given > 0:
		return given
	case strings.HasPrefix(s.device.Name(), "ref "):
		perThread = assumedRef
	}
	return perThread * float64(max(t.Threads, 1))
}

// estimate prices a job and its tuning, where all pipelines together train on so many samples a second.
func (s *Session) estimate(space *tuner.Space, rate float64, basis string) (e tuner.Estimate, confirming float64) {
	e.JobSeconds, e.Basis = s.jobSeconds(rate), basis
	batch := float64(space.Batch) / rate // of one pipeline, at best
	watched := func(pipelines int, least int, watch time.Duration) float64 {
		each := batch * float64(pipelines)
		batches := max(float64(least), min(mostProfiled, math.Ceil(max(watch, 0).Seconds()/each)))
		return runSeconds + each*(float64(warmUp(pipelines))+batches)
	}
	sizes := s.subject.sizes(*space)
	for _, target := range space.Targets {
		e.TuningSeconds += float64(len(s.subject.layeredSizes(sizes))) * watched(1, profileBatches, 0)
		e.TuningSeconds += float64(len(sizes)) * watched(s.alone(target), profileBatches, s.config.Watch/2)
		if s.alone(target) == 1 && s.subject.several(target) {
			e.TuningSeconds += float64(len(sizes)) * watched(2, profileBatches, s.config.Watch/2)
		}
	}
	confirming = float64(turns*max(s.config.Runs, 0)) * watched(2, max(s.config.Batches/turns, 1), s.config.Watch)
	e.TuningSeconds += confirming
	return e, confirming
}

// tooDearError says that measuring a job would cost more than its file allows.
type tooDearError struct{ text string }

func (e *tooDearError) Error() string { return e.text }

// afford holds what measuring costs against what the job allows of its time, once the first reading has told how fast the devices
// are. What the short runs of the best cost is spared where that suffices.
func (s *Session) afford(space *tuner.Space, target tuner.Target, m *measurement, samples int) error {
	share := s.config.Request.Spec.Job.TuningShare
	if s.judged || !s.config.Request.Bounded || share == 0 {
		return nil
	}
	s.judged = true
	rate := s.guessed
	if took := m.layers.total(samples); took > 0 { // else the job says what passes take
		rate *= s.subject.passSeconds(target, samples) / took
	}
	e, confirming := s.estimate(space, rate, "the first reading")
	switch {
	case e.JobSeconds == 0 || e.Affordable(share, e.TuningSeconds):
		return nil
	case e.Affordable(share, e.TuningSeconds-confirming):
		s.config.Runs = -1
		s.spared = fmt.Sprintf("a full tuning would have cost about %s for a job of about %s: the best candidates were not run, and the predicted best is taken",
			words.Seconds(e.TuningSeconds), words.Seconds(e.JobSeconds))
		return nil
	}
	return &tooDearError{e.TooDear(share)}
}

// passSeconds is what the guess says that all layers take for a micro-batch, forward and backward.
func (s *subject) passSeconds(t tuner.Target, samples int) float64 {
	sum := 0.0
	for _, l := range s.model.Layers {
		f, b := l.FLOPs(s.size())
		sum += f + b
	}
	return sum * float64(samples) / s.assumedFLOPs(t)
}

// foretell is the report of a job of which nothing is measured: its price, by an earlier tuning of such a job or by assumption.
func (s *Session) foretell(space *tuner.Space) (*tuner.Report, error) {
	s.Guess(space)
	out, err := search(*space)
	if err != nil {
		return nil, err
	}
	report := out.Decide(nil)
	basis := fmt.Sprintf("a price model: %.3g floating-point operations a second on a device, assumed, not measured", s.subject.assumedFLOPs(space.Targets[0]))
	switch {
	case s.subject.fixedCosts():
		basis = "the times that the job gives to its emulated devices"
	case s.config.Request.Spec.Job.Devices.Kind == job.KindEmulated:
		basis = "what the job says of its emulated devices"
	}
	e, _ := s.estimate(space, report.Chosen.Predicted.SamplesPerSecond, basis)
	report.Estimate = &e
	return &report, nil
}

// recall adds the price of a job to the report of an earlier tuning, which costs nothing again.
func (s *Session) recall(r *tuner.Report) {
	rate := r.Chosen.Predicted.SamplesPerSecond
	if m := r.Chosen.Measured; m != nil {
		rate = m.SamplesPerSecond
	}
	r.Estimate = &tuner.Estimate{JobSeconds: s.jobSeconds(rate), Basis: "an earlier tuning of such a job"}
}

// jobSeconds is how long the job trains at a rate.
func (s *Session) jobSeconds(rate float64) float64 {
	j := &s.config.Request.Spec.Job
	seconds := float64(j.Wanted(s.epoch)) / rate
	if most := j.Train.MaxTime.Seconds(); most > 0 {
		return min(seconds, most)
	}
	return seconds
}
