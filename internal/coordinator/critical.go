package coordinator

import (
	"fmt"
	"math"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/spec"
	"github.com/avgpipe/avgpipe/internal/words"
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
