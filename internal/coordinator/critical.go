package coordinator

import (
	"bytes"
	"fmt"
	"math"
	"reflect"
	"slices"
	"time"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/cluster"
	"github.com/avgpipe/avgpipe/internal/spec"
	"github.com/avgpipe/avgpipe/internal/words"
	"github.com/avgpipe/avgpipe/internal/worker/control"
	"github.com/avgpipe/avgpipe/job"
)

// farAbove is how many critical batches a step may move the model by before that is worth a note: with four, training needs five times the samples that small batches need.
const farAbove = 4

// sayCritical says what was measured of the critical batch beside what a step of the job moves the model by.
func sayCritical(out *api.JobStatus, s *spec.Spec) {
	if out.CriticalBatch == nil || s.Job.Open() {
		return
	}
	b := *out.CriticalBatch // what a worker said stays as it is
	out.CriticalBatch = &b
	n, batch := int(s.Job.Pipelines), s.Job.Train.Batch
	if b.Moves = n * batch; b.Samples == 0 {
		return
	}
	b.Text = fmt.Sprintf("%s (measured up to step %d, within %s); this job moves the model by %s a step",
		samples(b.Samples), b.Step, words.Percent(b.Error), words.Count(b.Moves, "sample"))
	over := float64(b.Moves) / b.Samples
	if over < farAbove {
		return
	}
	b.Note = fmt.Sprintf("a step moves the model by %.0f times the critical batch, so most of its samples bring little: ", over)
	fewer := min(max(1, int(math.Round(b.Samples/float64(batch)))), n)
	switch {
	case fewer < n:
		b.Note += fmt.Sprintf("with pipelines: %d the same loss takes fewer samples; once the job has ended, avgpipectl resume %s --pipelines %d goes on so", fewer, out.ID, fewer)
	default:
		b.Note += fmt.Sprintf("with a train.batch of about %.0f the same loss takes fewer samples", math.Ceil(b.Samples))
	}
}

// samples are a number of samples that is not exact, to two digits.
func samples(n float64) string {
	if n < 1 {
		return "less than 1 sample"
	}
	scale := math.Pow(10, max(0, math.Floor(math.Log10(n))-1))
	return "about " + words.Count(int(math.Round(n/scale)*scale), "sample")
}

// measuredBatch is what a spec's pipelines are to be weighed by, where it leaves that to what was measured; nil of none.
func (c *Coordinator) measuredBatch(s *spec.Spec) *control.MeasuredBatch {
	if s.Job.Train.CriticalBatch != job.AutoCriticalBatch {
		return nil
	}
	return newestMeasured(c.raft.State().Jobs(), c.Spec, s)
}

// newestMeasured is what the newest job of the same name, model and data has measured of the critical batch. A job whose spec cannot be read is passed over.
func newestMeasured(all []*cluster.Job, specOf func(*cluster.Job) (*spec.Spec, error), s *spec.Spec) (found *control.MeasuredBatch) {
	var newest time.Time
	for _, j := range all {
		m := j.LastCommitted()
		if m == nil || j.Name != s.Job.Name || found != nil && j.Submitted.Before(newest) {
			continue
		}
		b := control.CriticalBatch(control.MetaOf(m).Noise)
		if b == nil || b.Samples == 0 {
			continue
		}
		if of, err := specOf(j); err == nil && trainsAlike(of, s) {
			found, newest = &control.MeasuredBatch{Samples: b.Samples, Job: j.ID, Step: b.Step}, j.Submitted
		}
	}
	return found
}

// trainsAlike reports whether two jobs train the same model on the same data, so that their gradients have the same noise.
func trainsAlike(a, b *spec.Spec) bool {
	return bytes.Equal(a.Model, b.Model) && a.Job.Model.Family == b.Job.Model.Family && reflect.DeepEqual(a.Job.Data, b.Job.Data) &&
		reflect.DeepEqual(a.Job.LoRA, b.Job.LoRA) && slices.Equal(a.Job.Train.Only, b.Job.Train.Only)
}
