package profile

import (
	"fmt"
	"math"

	"github.com/avgpipe/avgpipe/internal/words"
	"github.com/avgpipe/avgpipe/internal/worker/control"
	"github.com/avgpipe/avgpipe/job"
)

// takeCritical puts what was measured in the place of train.critical_batch auto: nothing of none. It returns a note that says so; "" where the file has a number. What was measured is rounded to half a power
// of two, which is about its error, so that a job whose noise was measured again a little differently finds its cached plan.
func takeCritical(r *control.TuneRequest) (note string) {
	b := &r.Spec.Job.Train.CriticalBatch
	if *b != job.AutoCriticalBatch {
		return ""
	}
	m := r.Critical
	switch *b = 0; {
	case r.Spec.Job.Pipelines != job.Auto:
		return "pipelines is given, so train.critical_batch auto weighs nothing; with pipelines: auto it does"
	case m == nil:
		return "train.critical_batch is auto, and no job of this name, model and data has measured it yet"
	}
	*b = math.Exp2(math.Round(2*math.Log2(m.Samples)) / 2)
	return fmt.Sprintf("train.critical_batch is auto: %.3g samples, as measured by job %s in %s", *b, m.Job, words.Count(int(m.Step), "step"))
}
