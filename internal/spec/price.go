package spec

import (
	"github.com/avgpipe/avgpipe/internal/footprint"
	"github.com/avgpipe/avgpipe/internal/jobfile"
	"github.com/avgpipe/avgpipe/job"
	"github.com/avgpipe/avgpipe/schedule"
	"github.com/avgpipe/avgpipe/stage"
	"github.com/avgpipe/avgpipe/tuner"
)

// assumedFLOPs is how many floating-point operations of products a core does in a second, where nobody has measured a job. Placement weighs stages and links
// with it, and the error of a small factor changes neither the balance of stages nor, as a rule, the choice.
const assumedFLOPs = 2e10

// Price is what each stage of a resolved job takes on the device that it was measured on, in seconds, and what crosses each boundary, in bytes of a
// message, without the time of links. Where it was not measured, it is estimated from floating-point operations. ok is false where it cannot be told.
func (s *Spec) Price() (c schedule.Costs, measured, ok bool) {
	s = s.Admitted()
	if s.Job.Open() {
		return c, false, false
	}
	if s.Report != nil && len(s.Report.Chosen.Costs.Forward) == s.Stages() {
		c = s.Report.Chosen.Costs
		c.Link, c.Bandwidth = nil, nil
		return c, true, true
	}
	m, err := s.BuildModel()
	if err != nil {
		return c, false, false
	}
	f, split := Facts{Model: m}, s.Split()
	if split == nil {
		if split, err = f.cut(&s.Job); err != nil {
			return c, false, false
		}
	}
	size := footprint.Size(m, &s.Job, samples(&s.Job))
	costs, fixed, flops := m.Costs(size), Fixed(&s.Job), assumedFLOPs*float64(max(1, s.Job.Devices.CPU.Threads))
	if dictated := job.At(s.Job.Devices.Emulated.FLOPs, 0); s.Job.Devices.Kind == job.KindEmulated && dictated > 0 {
		flops = dictated
	}
	for k, run := range split {
		seconds := 0.0
		for _, operations := range costs[run[0]:run[1]] {
			seconds += operations / flops
		}
		forward, backward := seconds/3, 2*seconds/3 // two of three products are of the backward
		if t := job.At(fixed, k); t.Forward > 0 {
			forward, backward = t.Forward, t.Backward
		}
		c.Forward, c.Backward = append(c.Forward, forward), append(c.Backward, backward)
		if k+1 < len(split) {
			c.MessageBytes = append(c.MessageBytes, int64(footprint.OutputBytes(m.Layers[run[1]-1], &s.Job, size)))
		}
	}
	return c, false, true
}

// Messages are, of each stage, the bytes that a pipeline sends to every other group in the time of a batch; nil where there is no other, or it cannot be
// told.
func (s *Spec) Messages() (all []int64) {
	m, err := s.BuildModel()
	if err != nil || s.Groups() == 1 {
		return nil
	}
	method, err := jobfile.Averaging(&s.Job.Averaging, max(2, int(s.Job.Pipelines)))
	if err != nil {
		return nil
	}
	every := int64(s.Job.Averaging.Tau) * int64(method.Needs().Every())
	for _, run := range s.Split() {
		values := 0
		for _, t := range stage.Layout(m.Layers[run[0]:run[1]], false) {
			values += t.Len()
		}
		all = append(all, 4*int64(values)/every)
	}
	return all
}

// StageBytes is, of each stage, the memory of its host that it takes, as predicted; nil while the job is open, or where it cannot be told.
func (s *Spec) StageBytes() (all []int64) { return inHost(&s.Job, s.Memory()) }

// inHost is what each stage takes of the memory of its host.
func inHost(j *job.Job, memory []tuner.Memory) (all []int64) {
	for _, m := range memory {
		bytes := m.Total()
		if !j.Devices.InHost() {
			bytes -= m.OnDevice()
		}
		all = append(all, bytes)
	}
	return all
}
