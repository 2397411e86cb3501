package jobfile

import (
	"github.com/avgpipe/avgpipe/elastic"
	"github.com/avgpipe/avgpipe/job"
)

// Averaging is the method by which a job averages so many pipelines.
func Averaging(a *job.Averaging, pipelines int) (elastic.Method, error) {
	return elastic.NewMethod(a.Method, elastic.Config{
		Pull: elastic.PullRule(a.Pull), Alpha: a.Alpha, Horizon: a.Horizon, MaxDrift: a.MaxDrift, OuterRate: a.OuterRate, OuterMomentum: a.OuterMomentum, Fragments: a.Fragments, Mix: a.Mix,
		StaleLayers: a.StaleLayers, Prediction: elastic.Prediction(a.Prediction), Compensation: elastic.Compensation(a.Compensation), Lambda: a.Lambda, Precision: elastic.Precision(a.Precision),
		Warmup: uint64(a.Warmup), Tau: a.Tau, Pipelines: pipelines,
	})
}
