package spec

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/avgpipe/avgpipe/elastic"
	"github.com/avgpipe/avgpipe/internal/jobfile"
	"github.com/avgpipe/avgpipe/internal/words"
	"github.com/avgpipe/avgpipe/job"
	"github.com/avgpipe/avgpipe/stage"
	"github.com/avgpipe/avgpipe/stage/layer"
)

// decideAveraging decides what a job leaves open of its averaging, most of it by the number of pipelines.
func decideAveraging(j *job.Job) error {
	a := &j.Averaging
	method, err := jobfile.Averaging(a, int(j.Pipelines))
	if err != nil {
		return err
	}
	c := method.Config()
	a.Alpha, a.OuterRate, a.Tau = c.Alpha, c.OuterRate, c.Tau
	if a.TauMost == 0 { // else by the tau that is chosen
		a.Horizon = c.Horizon
	}
	dropUnread(a)
	if a.RateScale == job.AutoFactor {
		a.RateScale = job.Factor(method.RateScale(stage.Adaptive(j.Optimizer.Name)))
	}
	return nil
}

// leastRounds is how many rounds everything is exchanged in at least by a tau that the program chooses, as far as the budget is known and has the steps.
const leastRounds = 4

// decideRounds decides how long rounds are, and in how many of them all layers are exchanged once, where the file leaves that to the method. Rounds of more than one step are as many as the budget
// takes, of about one length, so that little is added to it to fill the last one.
func (x *resolver) decideRounds() bool {
	a, j := &x.Job.Averaging, &x.Job
	layers := 0
	for _, l := range x.Model.Layers {
		if layer.Trains(l) {
			layers++
		}
	}
	if a.Fragments == 0 && slices.Contains(elastic.Settings()[a.Method], "fragments") {
		a.Fragments = max(2, min(elastic.DefaultFragments, layers))
	}
	method, err := jobfile.Averaging(a, jobfile.Pipelines(j))
	if err != nil {
		x.refuseAveraging(err)
		return false
	}
	every, parts := method.Needs().Every(), int(method.Needs().Period) //nolint:gosec // not more than fragments
	if parts > max(1, layers) {
		if layers < 2 {
			x.refuse("averaging.method", "diloco", "averaging.method %s exchanges layers in turn, and %s of the model is trained; use diloco, or another method", a.Method, words.Count(layers, "layer"))
		} else {
			x.refuse("averaging.fragments", strconv.Itoa(layers), "averaging.fragments is %d: the model has %s that are trained, and each fragment needs one; at most %d", parts, words.Count(layers, "layer"), layers)
		}
		return false
	}
	steps := int(j.Wanted(x.Epoch)) //nolint:gosec // a budget
	if steps > 0 {
		steps = max(1, steps/(j.Train.Batch*jobfile.Pipelines(j)))
	}
	switch a.Tau {
	case 0:
		a.Tau = wholeRounds(method.Config().Tau, steps, every)
	case job.AutoTau:
		if problem := jobfile.UnchosenTau(j); problem != "" {
			x.refuse("averaging.tau", "1", "%s", problem)
			return false
		}
		return x.boundTau(wholeRounds(method.Config().Tau, steps, every), steps, every)
	}
	return true
}

// boundTau decides from and up to how many steps of a round are chosen where the file leaves that open: from least on, and so few that a budget of steps, which is 0 where nobody knows it, has leastRounds for every exchange.
func (x *resolver) boundTau(least, steps, every int) bool {
	a := &x.Job.Averaging
	if given := a.TauMost; given > 0 && given < least && !x.Unread {
		x.refuse("averaging.tau_most", strconv.Itoa(least), "averaging.tau is auto and averaging.tau_most is %d: of this job, with method %s, at least %d are chosen; want tau_most: %d or more, or a number for tau",
			given, a.Method, least, least)
		return false
	}
	a.Tau, a.TauMost = least, cmp.Or(a.TauMost, elastic.MostTau)
	if steps > 0 {
		a.TauMost = max(least, min(a.TauMost, steps/(leastRounds*every)))
	}
	return true
}

// wholeRounds is about how long rounds are where they may be of so many steps: as many as a budget of steps takes, of about one length, and enough that everything is exchanged leastRounds times, each time in so many rounds. A budget of 0
// is not known.
func wholeRounds(tau, steps, every int) int {
	if steps < 1 || tau < 2 {
		return tau
	}
	rounds := max(leastRounds*every, (steps+tau-1)/tau)
	return (steps + rounds - 1) / rounds
}

// CheckRounds checks that a budget, with epochs of so many samples, has a round for each of the parts of the model that are exchanged in turn. It returns the key that is wrong and the nearest value for it;
// nothing while the budget is not known.
func CheckRounds(j *job.Job, epoch uint64) (key, nearest, problem string) {
	method, err := jobfile.Averaging(&j.Averaging, int(j.Pipelines))
	b := j.Resolved(epoch)
	if err != nil || b == nil || j.Averaging.Tau < 1 {
		return "", "", ""
	}
	every, rounds := uint64(method.Needs().Every()), b.Steps/uint64(j.Averaging.Tau)
	if every <= rounds {
		return "", "", ""
	}
	what := "pipelines"
	if method.Needs().Period > 1 {
		what = "fragments"
	}
	of := fmt.Sprintf("the budget (%s) has %s of it, fewer than the %d in which every pipeline exchanges all layers once: some would stay as they began", j.Train.Budget(), words.Count(int(rounds), "round"), every)
	steps := stepsOf(j, int(j.Pipelines), epoch)
	if steps >= every { // a smaller tau makes rounds enough
		return "averaging.tau", strconv.FormatUint((steps-1)/(every-1), 10), fmt.Sprintf("averaging.tau is %d, and %s; use a smaller tau, fewer %s or a larger budget", j.Averaging.Tau, of, what)
	}
	switch {
	case what == "pipelines":
		return "pipelines", fewerInTurn(j, epoch), fmt.Sprintf("pipelines is %d, averaging.tau is %d, and %s; use fewer pipelines or a larger budget", j.Pipelines, j.Averaging.Tau, of)
	case steps < 2:
		return "averaging.method", "diloco", fmt.Sprintf("averaging.method is %s, averaging.tau is %d, and %s; use diloco or a larger budget", j.Averaging.Method, j.Averaging.Tau, of)
	}
	return "averaging.fragments", strconv.FormatUint(steps, 10), fmt.Sprintf("averaging.fragments is %d, averaging.tau is %d, and %s; use fewer fragments or a larger budget", j.Averaging.Fragments, j.Averaging.Tau, of)
}

// stepsOf is how many steps each of so many pipelines takes of the budget, in rounds of one step.
func stepsOf(j *job.Job, pipelines int, epoch uint64) uint64 {
	of := *j
	of.Averaging.Tau, of.Pipelines = 1, job.Count(pipelines)
	return of.Resolved(epoch).Steps
}

// fewerInTurn are the most pipelines, of fewer than a job has and in as many groups, each of which has a turn in rounds of one step; "" where there are none.
func fewerInTurn(j *job.Job, epoch uint64) string {
	groups := max(1, j.Groups)
	for n := int(j.Pipelines) - groups; n > 0; n -= groups {
		if stepsOf(j, n, epoch) >= uint64(n) { //nolint:gosec // above 0
			return strconv.Itoa(n)
		}
	}
	return ""
}

// set reports whether a key of averaging, of those that have no value by default, has one.
func (x *resolver) set(key string) bool {
	a := &x.Job.Averaging
	return key == "averaging.stale_layers" && a.StaleLayers > 0 || key == "averaging.warmup" && a.Warmup > 0
}

// refuseAveraging refuses averaging that cannot be.
func (x *resolver) refuseAveraging(err error) {
	if wrong, is := errors.AsType[*elastic.SettingError](err); is {
		x.refuse(wrong.Key, wrong.Nearest, "%v", wrong)
		return
	}
	x.refuse("averaging", "", "%v", err)
}

// checkPrediction refuses averaging that cannot be, and an optimizer whose steps cannot be predicted, where the method does so.
func (x *resolver) checkPrediction() bool {
	if _, err := jobfile.Averaging(&x.Job.Averaging, jobfile.Pipelines(&x.Job)); err != nil {
		x.refuseAveraging(err)
		return false
	}
	if problem := jobfile.Unpredictable(&x.Job); problem != "" {
		x.refuse("optimizer.name", "sgd", "%s", problem)
		return false
	}
	return true
}

// warnOfCriticalBatch warns where no tuning chooses the number of pipelines.
func (x *resolver) warnOfCriticalBatch() {
	if b := x.Job.Train.CriticalBatch; b > 0 {
		x.warn("train.critical_batch is %g and nothing weighs it: pipelines is given or decided by the rules; a tuning weighs it, with pipelines: auto", b)
	}
}

// whyLate says what becomes of late layers whose number is left open.
func (x *resolver) whyLate() {
	switch j := &x.Job; {
	case !lateOpen(j) || j.Pipelines == 1:
	case j.Groups > 1:
		x.because("averaging.stale_layers auto: chosen where the job is placed, by the links between its groups, and again each time that it is placed")
	default:
		x.because("averaging.stale_layers auto: none, as with allreduce: with one group of pipelines nothing is exchanged over a network")
	}
}

// dropUnread drops what only other methods read of settings that programs of the version before do not know, so that those understand a job that has
// none of them.
func dropUnread(a *job.Averaging) {
	for setting, drop := range map[string]func(){
		"outer_lr":       func() { a.OuterRate = 0 },
		"outer_momentum": func() { a.OuterMomentum = 0 },
		"fragments":      func() { a.Fragments = 0 },
		"mix":            func() { a.Mix = 0 },
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
