package worker

import (
	"testing"

	"github.com/avgpipe/avgpipe/job"
)

// TestLearningRateIsScaledAtEveryStep by averaging.lr_scale: in the warm-up, at the peak and at the end.
func TestLearningRateIsScaledAtEveryStep(t *testing.T) {
	spec := job.Job{
		Optimizer: job.Optimizer{LearningRate: 0.5, Schedule: "linear", MinimumRatio: 0.25},
	}
	budget := job.Budget{Steps: 10, Warmup: 2}
	plain := learningRate(spec, budget) // open, as in a trial
	spec.Averaging.RateScale = 2
	scaled := learningRate(spec, budget)
	for step := range uint64(12) {
		if scaled.At(step) != 2*plain.At(step) {
			t.Errorf("step %d: %v, expected twice %v", step, scaled.At(step), plain.At(step))
		}
	}
}
