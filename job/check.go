package job

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/avgpipe/avgpipe/internal/nearest"
	"github.com/avgpipe/avgpipe/internal/strictyaml"
)

// checker holds the fields of a job against each other. What has a problem already is spared another.
type checker struct {
	*strictyaml.Document
	*Job
}

func (c *checker) refuse(key, nearest, format string, args ...any) {
	if !c.Refused(key) {
		c.Refuse(key, nearest, format, args...)
	}
}

func (c *checker) check(env Environment) {
	c.known("model.family", c.Model.Family, env.Families)
	switch {
	case c.Schedule == planFile:
		c.refuse("schedule", "file:plan.txt", "schedule is file: without a path; write it behind the colon")
	case c.Schedule != AutoSchedule && c.PlanFile() == "":
		c.known("schedule", c.Schedule, env.Schedules)
	}
	c.checkAveraging(env.Methods)
	c.checkModel()
	if len(c.Data.Validation) > 0 && c.Has("data.holdout") {
		c.refuse("data.holdout", "", "data.holdout stands beside data.validation, which says what is evaluated on; remove one of them")
	}
	c.checkSource()
	c.checkURLs()
	c.checkOptimizer()
	c.checkBudget()
	c.checkDevices()
	c.checkRecompute()
	c.checkMicroBatches()
	if n := int(c.Stages); n > 0 && c.MinStages > n {
		c.refuse("min_stages", strconv.Itoa(n), "min_stages is %d, more than the %d of stages", c.MinStages, n)
	}
	c.checkGroups()
	if env.Check != nil {
		env.Check(c.Document, c.Job)
	}
}

// together are settings that others rule out by their defaults, with what they need beside them.
var together = map[string]string{"compensation": " with prediction: prev_sync", "lambda": " with compensation: diag and prediction: prev_sync"}

// checkAveraging checks the method, and that it reads what is said of it.
func (c *checker) checkAveraging(methods map[string][]string) {
	a := &c.Averaging
	c.known("averaging.method", a.Method, slices.Sorted(maps.Keys(methods)))
	own, known := methods[a.Method]
	readers := map[string][]string{}
	for _, of := range slices.Sorted(maps.Keys(methods)) {
		for _, setting := range methods[of] {
			readers[setting] = append(readers[setting], of)
		}
	}
	for _, setting := range slices.Sorted(maps.Keys(readers)) {
		if key := "averaging." + setting; known && !slices.Contains(own, setting) && c.Has(key) {
			of := readers[setting]
			one := of[0]
			if usual := Default().Averaging.Method; slices.Contains(of, usual) {
				one = usual
			}
			c.refuse(key, "", "%s is read with method %s only, and averaging.method is %s; remove it, or write method: %s%s%s", key, strings.Join(of, " and "), a.Method,
				one, together[setting], Without(methods[a.Method], methods[one], c.Has))
		}
	}
	if slices.Contains(own, "lambda") && a.Lambda != 0 && a.Compensation == "none" {
		more := ""
		if a.Prediction == "local" || a.Prediction == "none" { // in which there is nothing to correct
			more = " with prediction: prev_sync"
		}
		c.refuse("averaging.lambda", "", "averaging.lambda weighs a compensation, and averaging.compensation is none; remove it, or write compensation: diag%s", more)
	}
	if a.Tau != AutoTau && a.TauMost != 0 {
		c.refuse("averaging.tau_most", "", "averaging.tau_most is read by tau: auto alone, and averaging.tau is %d; remove it, or write tau: auto", a.Tau)
	}
	if a.Pull != "predicted" && a.Horizon != 0 {
		c.refuse("averaging.horizon", "", "averaging.horizon is read with pull predicted only, and averaging.pull is %s; remove it, or write pull: predicted", a.Pull)
	}
}

// Without says which settings of a method a job file has that another one does not read; "" of none.
func Without(own, others []string, has func(key string) bool) string {
	var names []string
	for _, setting := range own {
		if has("averaging."+setting) && !slices.Contains(others, setting) {
			names = append(names, setting)
		}
	}
	if len(names) == 0 {
		return ""
	}
	return " without " + strings.Join(names, " and ")
}

// known checks a name that another package's table holds.
func (c *checker) known(key, name string, names []string) {
	if name != "" && names != nil && !slices.Contains(names, name) {
		c.refuse(key, nearest.Word(name, names), "%s wants %s; found %q", key, strictyaml.OneOf(names), name)
	}
}

// checkModel checks that the model comes from one place.
func (c *checker) checkModel() {
	for _, key := range []string{"args", "cut", "loss", "interpreter", "task", "vocabulary", "image"} {
		if c.Model.Python == "" && c.Has("model."+key) {
			c.refuse("model."+key, "", "model.%s is read by model.python alone, which is missing; remove one or add the other", key)
		}
	}
	switch m := c.Model; {
	case m.Python != "":
		c.checkPython()
	case m.Family == "" && m.From == "":
		c.refuse("model.family", "", `missing key "model.family" (or "model.from", a directory to start from, whose config.json names it)`)
	case m.From != "" && m.Config != nil:
		c.refuse("model.config", "", "model.config stands beside model.from, whose config.json already says it; remove one of them")
	case m.From == "" && m.Config == nil:
		c.refuse("model.config", "", `missing key "model.config" (or "model.from", a directory to start from)`)
	}
}

// checkSource checks that the samples come from one place.
func (c *checker) checkSource() {
	if d := c.Data; d.Samples != "" {
		if c.Model.Python == "" {
			c.refuse("data.samples", "", "data.samples is a function of the file of model.python, which is missing; remove one or add the other")
		}
		return
	}
	if !c.Has("data.files") {
		c.refuse("data.files", "", `missing key "data.files" (or "data.samples", a function of a program of yours)`)
	}
	for _, key := range []string{"data.args", "data.collate"} {
		if c.Has(key) {
			c.refuse(key, "", "%s is read by data.samples alone, which is missing; remove one or add the other", key)
		}
	}
}

// leastRate is the least learning rate that may be meant: what a warm-up makes of it is still a number of 32 bits.
const leastRate = 1e-20

// checkOptimizer refuses what the optimizer does not read, since a setting that is silently without effect costs its author a run.
func (c *checker) checkOptimizer() {
	o := c.Optimizer
	for _, f := range schema.Fields {
		if f.Of == nil || slices.Contains(f.Of, o.Name) || !c.Has(f.Key) || f.In(c.Job).IsZero() {
			continue
		}
		near, is := "", "the optimizer is "+o.Name
		if f.Key == "optimizer.momentum" && strings.HasPrefix(o.Name, "adam") {
			near, is = "betas", o.Name+" has betas"
		}
		c.refuse(f.Key, near, "%s is read by %s only; %s", f.Key, strings.Join(f.Of, " and "), is)
	}
	if o.LearningRate > 0 && o.LearningRate < leastRate {
		c.refuse("optimizer.lr", "", "optimizer.lr is %v, which moves no weight of 32 bits; want %v to 10000", o.LearningRate, leastRate)
	}
	if o.ClipNorm > 0 && o.ClipNorm < leastRate {
		c.refuse("optimizer.clip_norm", "0", "optimizer.clip_norm is %v, which leaves nothing of a gradient in 32 bits; want 0, which clips nothing, or at least %v", o.ClipNorm, leastRate)
	}
	if o.Name == "sgd" && o.Nesterov && o.Momentum == 0 {
		c.refuse("optimizer.nesterov", "", "optimizer.nesterov looks ahead along the momentum, and optimizer.momentum is 0; set it, as to 0.9")
	}
}

// checkRecompute checks that a list with an entry for each stage has as many.
func (c *checker) checkRecompute() {
	n, k := len(c.Recompute), int(c.Stages)
	if n <= 1 || k <= 0 || n == k*max(1, int(c.Chunks)) || c.Chunks == Auto && n%k == 0 { // else the schedule says how many chunks
		return
	}
	what := strconv.Itoa(k) + " (stages)"
	if c.Chunks > 1 {
		what = fmt.Sprintf("%d (stages times chunks)", k*int(c.Chunks))
	}
	c.refuse("recompute", "", "recompute has entries for %d stages, and there are %s; a word alone stands for all", n, what)
}

// checkMicroBatches checks that the micro-batches cut the batch evenly: the mean of a batch's gradients weighs every sample the
// same, and the stages' buffers have one size.
func (c *checker) checkMicroBatches() {
	m, batch := int(c.MicroBatches), c.Train.Batch
	if m <= 0 || batch <= 0 || batch%m == 0 {
		return
	}
	below, above := NearestDivisors(batch, m)
	near := []string{strconv.Itoa(below)}
	if above > 0 {
		near = append(near, strconv.Itoa(above))
	}
	c.refuse("micro_batches", strings.Join(near, " or "), "micro_batches is %d, which does not divide train.batch, %d", m, batch)
}

// checkGroups checks that the groups are as large as each other, and that nothing is to be measured, which is done on one set of devices.
func (c *checker) checkGroups() {
	more := ""
	if c.Pipelines > 0 && c.Pipelines%2 != 0 {
		more = fmt.Sprintf(" and pipelines: %d", c.Pipelines+1)
	}
	if a := c.Averaging; a.Precision != "f32" && c.Groups <= 1 && c.Has("averaging.precision") {
		c.refuse("averaging.precision", "f32", "averaging.precision is %s, and groups is %d: it is of messages between groups, and one group sends none; remove it, or write groups: 2%s", a.Precision, c.Groups, more)
	}
	switch n, groups := int(c.Pipelines), c.Groups; {
	case groups <= 1:
	case c.Open():
		c.refuse("groups", "", "groups is %d, and %s are to be measured, which is done on one group; give them, or write `tuning: rules`", groups, strings.Join(c.OpenKeys(), ", "))
	case n > 0 && n%groups != 0:
		below, above := NearestDivisors(n, groups)
		near := []string{strconv.Itoa(below)}
		if above > 0 {
			near = append(near, strconv.Itoa(above))
		}
		c.refuse("groups", strings.Join(near, " or "), "groups is %d, which does not divide pipelines, %d", groups, n)
	}
}

// NearestDivisors returns the largest divisor of batch that is at most n and the smallest that is at least n; 0 for one
// that does not exist.
func NearestDivisors(batch, n int) (below, above int) {
	below, above = min(n, batch), max(n, 1)
	for below > 0 && batch%below != 0 {
		below--
	}
	for above <= batch && batch%above != 0 {
		above++
	}
	if above > batch {
		above = 0
	}
	return max(below, 0), above
}
