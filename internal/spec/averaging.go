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

// dropUnread drops what only other methods read of settings that programs of the version before do not know, so that those understand a job that has
// none of them.
func dropUnread(a *job.Averaging) {
	if !slices.Contains(elastic.Settings()[a.Method], "outer_lr") {
		a.OuterRate, a.OuterMomentum = 0, 0
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
