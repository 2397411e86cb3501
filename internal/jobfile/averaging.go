package jobfile

import (
	"errors"
	"fmt"
	"slices"

	"github.com/avgpipe/avgpipe/elastic"
	"github.com/avgpipe/avgpipe/internal/strictyaml"
	"github.com/avgpipe/avgpipe/job"
	"github.com/avgpipe/avgpipe/schedule"
)

// Averaging is the method by which a job averages so many pipelines.
func Averaging(a *job.Averaging, pipelines int) (elastic.Method, error) {
	tau := a.Tau
	if tau == job.AutoTau {
		tau = elastic.LeastTau(a.Method)
	}
	return elastic.NewMethod(a.Method, elastic.Config{
		Pull: elastic.PullRule(a.Pull), Alpha: a.Alpha, Horizon: a.Horizon, MaxDrift: a.MaxDrift, OuterRate: a.OuterRate, OuterMomentum: a.OuterMomentum, Fragments: a.Fragments, Mix: a.Mix,
		StaleLayers: int(a.StaleLayers), Prediction: elastic.Prediction(a.Prediction), Compensation: elastic.Compensation(a.Compensation), Lambda: a.Lambda, Precision: elastic.Precision(a.Precision),
		Warmup: uint64(a.Warmup), Tau: tau, Pipelines: pipelines,
	})
}

// AveragingOpen is Averaging for what has to be known before it is chosen how many layers are late, where a job of several groups of pipelines leaves that open: as if some were. So there is memory for
// the weights that late layers compute with whatever is chosen, and it may change while the job keeps its place.
func AveragingOpen(j *job.Job, pipelines int) (elastic.Method, error) {
	a := j.Averaging
	if j.Groups > 1 && a.StaleLayers == job.Auto && slices.Contains(elastic.Settings()[a.Method], "stale_layers") {
		a.StaleLayers = 1
	}
	return Averaging(&a, pipelines)
}

// Pipelines is how many pipelines the averaging of a job is checked for: its own, or two where their number is open.
func Pipelines(j *job.Job) int {
	if j.Pipelines == job.Auto {
		return max(2, j.Groups)
	}
	return int(j.Pipelines)
}

// checkAveraging checks the settings of the method, and whether it goes with the schedule.
func checkAveraging(at *strictyaml.Document, j *job.Job) {
	if problem := StepsInside(j, at.Has); problem != "" && !at.Refused("schedule") {
		at.Refuse("schedule", job.Default().Schedule, "%s", problem)
	}
	if problem := Unpredictable(j); problem != "" && !at.Refused("optimizer.name") {
		at.Refuse("optimizer.name", "sgd", "%s", problem)
	}
	if problem := UnchosenTau(j); problem != "" && !at.Refused("averaging.tau") {
		at.Refuse("averaging.tau", "1", "%s", problem)
	}
	_, err := Averaging(&j.Averaging, Pipelines(j))
	if wrong, is := errors.AsType[*elastic.SettingError](err); is && !at.Refused(wrong.Key) {
		at.Refuse(wrong.Key, wrong.Nearest, "%v", wrong)
	}
}

// StepsInside says why a job cannot exchange gradients by its schedule, which steps the optimizer inside of a batch; "" where it can, or exchanges none. has reports whether the job's
// file has a key. Whether a plan that the user wrote does so, is not known here.
func StepsInside(j *job.Job, has func(key string) bool) string {
	plan, _, err := schedule.Generate(j.Schedule, schedule.Request{Devices: 2, MicroBatches: 4})
	if err != nil || plan.Updates() == 0 {
		return "" // there is no such schedule, or it steps after a batch
	}
	return Inside(j, has)
}

// Inside is StepsInside for a job whose plan steps inside of a batch.
func Inside(j *job.Job, has func(key string) bool) string {
	a := &j.Averaging
	method, err := Averaging(a, Pipelines(j))
	if err != nil || !method.Needs().Gradients { // of a single pipeline none are exchanged
		return ""
	}
	usual := job.Default()
	other := usual.Averaging.Method
	return fmt.Sprintf("averaging.method %s exchanges the gradients of a batch, and the schedule %s steps the optimizer inside of a batch; write schedule: %s, or another that steps after the batch, or method: %s, localsgd or diloco%s",
		a.Method, j.Schedule, usual.Schedule, other, job.Without(elastic.Settings()[a.Method], elastic.Settings()[other], has))
}

// UnchosenTau says why tau: auto is not for a job; "" where it is, or the file says a number.
func UnchosenTau(j *job.Job) string {
	a := &j.Averaging
	if a.Tau != job.AutoTau {
		return ""
	}
	method, err := Averaging(a, Pipelines(j))
	switch {
	case err != nil:
		return ""
	case method.Needs().Gradients:
		return fmt.Sprintf("averaging.tau is auto, and averaging.method %s exchanges gradients in every step; want tau: 1, or a method that exchanges updates: localsgd, diloco, streaming-diloco, easgd-async or elastic", a.Method)
	}
	if plan, _, err := schedule.Generate(j.Schedule, schedule.Request{Devices: 2, MicroBatches: 4}); err == nil && plan.Updates() > 0 {
		return fmt.Sprintf("averaging.tau is auto, and the schedule %s steps the optimizer inside of a batch and runs on across the batches of a round, so that its memory depends on tau; want a number", j.Schedule)
	}
	return ""
}

// Unpredictable says why the method of a job cannot predict the steps of its optimizer; "" where it can, or predicts none.
func Unpredictable(j *job.Job) string {
	method, err := AveragingOpen(j, Pipelines(j))
	if err != nil || !method.Needs().Predicts || j.Optimizer.Name != "asgd" {
		return ""
	}
	return fmt.Sprintf("optimizer.name is asgd, and averaging.method %s computes with predicted weights, where asgd computes with iterates that are not the parameters; write name: sgd, adam or adamw, "+
		"or averaging.prediction: none", j.Averaging.Method)
}
