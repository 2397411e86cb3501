package spec

import (
	"slices"

	"github.com/avgpipe/avgpipe/elastic"
	"github.com/avgpipe/avgpipe/internal/jobfile"
	"github.com/avgpipe/avgpipe/job"
	"github.com/avgpipe/avgpipe/stage"
)

// decideAveraging decides what a job leaves open of its averaging, most of it by the number of pipelines.
func decideAveraging(j *job.Job) error {
	a := &j.Averaging
	method, err := jobfile.Averaging(a, int(j.Pipelines))
	if err != nil {
		return err
	}
	c := method.Config()
	a.Alpha, a.Horizon, a.OuterRate = c.Alpha, c.Horizon, c.OuterRate
	dropUnread(a)
	if a.RateScale == job.AutoFactor {
		a.RateScale = job.Factor(method.RateScale(stage.Adaptive(j.Optimizer.Name)))
	}
	return nil
}

// checkPrediction refuses averaging that cannot be, and an optimizer whose steps cannot be predicted, where the method does so.
func (x *resolver) checkPrediction() bool {
	a := &x.Job.Averaging
	method, err := jobfile.Averaging(a, max(2, int(x.Job.Pipelines)))
	if err != nil {
		x.refuse("averaging", "", "%v", err)
		return false
	}
	if method.Needs().Predicts && x.Job.Optimizer.Name == "asgd" {
		x.refuse("optimizer.name", "sgd", "optimizer.name is asgd, and averaging.method %s computes with predicted weights, where asgd computes with iterates that are not the parameters; use sgd, "+
			"adam or adamw, or averaging.prediction: none", a.Method)
		return false
	}
	return true
}

// dropUnread drops what only other methods read of settings that programs of the version before do not know, so that those understand a job that has
// none of them.
func dropUnread(a *job.Averaging) {
	for setting, drop := range map[string]func(){
		"outer_lr":       func() { a.OuterRate = 0 },
		"outer_momentum": func() { a.OuterMomentum = 0 },
		"prediction":     func() { a.Prediction = "" },
		"compensation":   func() { a.Compensation = "" },
	} {
		if !slices.Contains(elastic.Settings()[a.Method], setting) {
			drop()
		}
	}
	if a.Precision == string(elastic.Float32) {
		a.Precision = ""
	}
}

// reopenAveraging opens what averaging was given by a number of pipelines.
func reopenAveraging(j *job.Job, pipelines int) {
	a, open := &j.Averaging, *j
	open.Pipelines, open.Averaging.Alpha, open.Averaging.RateScale = job.Count(pipelines), 0, job.AutoFactor
	if err := decideAveraging(&open); err != nil {
		return // what was given is all that there is
	}
	if a.Alpha == open.Averaging.Alpha {
		a.Alpha = 0
	}
	if a.RateScale == open.Averaging.RateScale {
		a.RateScale = job.AutoFactor
	}
}
