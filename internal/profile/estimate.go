package profile

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/avgpipe/avgpipe/internal/spec"
	"github.com/avgpipe/avgpipe/internal/words"
	"github.com/avgpipe/avgpipe/job"
	"github.com/avgpipe/avgpipe/stage/foreign"
	"github.com/avgpipe/avgpipe/tuner"
)

type devicePrice struct {
	device string
	spec.Price
}

// prices are those of a thread, by how the names of devices begin. Small jobs were measured on a virtual machine of two cores: half to
// three times of what these say.
var prices = []devicePrice{
	{"ref ", spec.Price{FLOPs: 3e9, Bytes: 1e10, Layer: 2e-5, Op: 2e-5, Step: 2e-4}},       // has one thread, whatever the job says
	{"gpu (", spec.Price{FLOPs: 2e13, Bytes: 1e12, Layer: 5e-5, Op: 2e-5, Step: 5e-4}},     // f32 products of an A100; small layers wait for launches
	{"cpu (gonum", spec.Price{FLOPs: 5e9, Bytes: 1e10, Layer: 2e-5, Op: 2e-5, Step: 2e-4}}, // a build without oneDNN
	{"", spec.Price{FLOPs: 1e11, Bytes: 1e10, Layer: 1e-5, Op: 2e-5, Step: 2e-4}},          // AVX-512 in small products
}

// runSeconds is what a run takes beside its batches: devices are opened, memory is touched, what scatters is read again.
const runSeconds = 0.3

// assumed is the price of a target's devices: an assumption, or what the job says of emulated ones.
func (s *subject) assumed(t tuner.Target) spec.Price {
	d := s.request.Spec.Job.Devices
	if given := job.At(d.Emulated.FLOPs, 0); d.Kind == job.KindEmulated {
		if given > 0 {
			return spec.Price{FLOPs: given}
		}
		return spec.Price{FLOPs: 1e11}
	}
	if s.request.Spec.Job.ModulesOnGPUs() { // what the dry run took on cores: nobody knows how much faster a GPU is
		return spec.Price{FLOPs: 1 / foreign.Seconds(1)}
	}
	i := slices.IndexFunc(prices, func(p devicePrice) bool { return strings.HasPrefix(s.Device, p.device) })
	p := prices[i].Price
	if prices[i].device != "ref " && d.Kind != job.KindGPU {
		p.FLOPs *= float64(max(t.Threads, 1))
	}
	return p
}

// guess is a profile before anything was measured.
func (s *subject) guess(t tuner.Target) *tuner.Profile { return s.Guess(t, s.assumed(t)) }

// estimate prices a job and its tuning, where all pipelines together train on so many samples a second; and as a part of the tuning the
// runs of the best candidates.
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
	runs := len(space.Targets) * len(space.MicroBatches) * len(space.Schedules)
	if len(space.Pipelines) == 0 {
		runs *= mostPipelines
	}
	confirming = float64(repeats*min(runs, max(s.config.Runs, 0))) * watched(2, max(s.config.Batches/repeats, 1), s.config.Watch)
	e.TuningSeconds += confirming
	return e, confirming
}

// tooCostlyError says that measuring a job would cost more than its file allows.
type tooCostlyError struct{ text string }

func (e *tooCostlyError) Error() string { return e.text }

// mostPipelines are worth a run of their own, where the job leaves their number open.
const mostPipelines = 3

// afford holds what measuring costs against what the job allows of its time, once the first reading has told how fast the devices
// are. What the short runs of the best cost is skipped where that suffices.
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
		s.skipped = fmt.Sprintf("a full tuning would have cost about %s for a job of about %s: the best candidates were not run, and the predicted best is taken",
			words.Seconds(e.TuningSeconds), words.Seconds(e.JobSeconds))
		return nil
	}
	return &tooCostlyError{e.TooDear(share)}
}

// passSeconds is what the price model says that all layers take for a micro-batch, forward and backward.
func (s *subject) passSeconds(t tuner.Target, samples int) (sum float64) {
	for _, l := range s.guess(t).Layers {
		sum += l.Forward.At(samples) + l.Backward.At(samples)
	}
	return sum
}

// estimateOnly is the report of a job of which nothing is measured: its price by assumption.
func (s *Session) estimateOnly(space *tuner.Space) (*tuner.Report, error) {
	s.Guess(space)
	out, err := s.search(*space)
	if err != nil {
		return nil, err
	}
	report := out.Decide(nil)
	return s.priced(space, &report), nil
}

// estimateDecided is that of a job with nothing to choose: of the plan that it trains by, and the layers that its stages have.
func (s *Session) estimateDecided() (*tuner.Report, error) {
	space, err := s.subject.Space()
	if err != nil {
		return nil, &permanentError{err}
	}
	s.Guess(&space)
	decided := &s.config.Request.Spec
	plan, _, err := decided.Plan()
	if err != nil {
		return nil, &permanentError{err}
	}
	j := &decided.Job
	c := tuner.Candidate{
		Devices: int(j.Stages), Chunks: max(1, int(j.Chunks)), Pipelines: int(j.Pipelines), MicroBatches: int(j.MicroBatches), RoundBatches: j.Averaging.Tau, Schedule: j.Schedule,
		Threads: int(j.Devices.CPU.Threads), Split: decided.Split(), InFlightLimit: decided.Layout.InFlightLimit, Verdict: tuner.Won, Reason: "there is nothing to choose",
	}
	for k := range plan.Stages() {
		c.Recompute = append(c.Recompute, job.At(j.Recompute, k))
	}
	if err := tuner.Predict(space, &c, plan); err != nil {
		return nil, &permanentError{err}
	}
	return s.priced(&space, &tuner.Report{Version: tuner.ReportVersion, Considered: 1, Chosen: c}), nil
}

// priced is a report with what the job and its tuning are expected to take, by a price model.
func (s *Session) priced(space *tuner.Space, report *tuner.Report) *tuner.Report {
	p := s.subject.assumed(space.Targets[0])
	basis := fmt.Sprintf("a price model, assumed, not measured: %.3g floating-point operations a second on %s, %s for a layer of a micro-batch and %s for a step at least",
		p.FLOPs, s.subject.Device, words.Seconds(3*p.Layer), words.Seconds(p.Step))
	switch {
	case s.config.Request.Spec.Job.ModulesOnGPUs():
		basis = "what the dry run took on cores, as if GPUs were no faster: not measured"
	case spec.Fixed(&s.config.Request.Spec.Job) != nil:
		basis = "the times that the job gives to its emulated devices"
	case s.config.Request.Spec.Job.Devices.Kind == job.KindEmulated:
		basis = "what the job says of its emulated devices"
	}
	e, _ := s.estimate(space, report.Chosen.Predicted.SamplesPerSecond, basis)
	report.Estimate = &e
	return report
}

// estimateCached adds the price of a job to the report of an earlier tuning, which costs nothing again.
func (s *Session) estimateCached(r *tuner.Report) {
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
