package job

import (
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/avgpipe/avgpipe/internal/nearest"
)

// Validate checks a job that was built or changed in Go against every rule that Parse holds a file to. The error is nil or
// Problems, which name keys and no lines.
func (j *Job) Validate(env Environment) error {
	var p *Positions
	var problems Problems
	for _, f := range j.faults(env, nil) {
		problems = append(problems, p.Problem(f.key, f.message, f.nearest))
	}
	return problems.err()
}

// faults lists what is wrong with a job: each field against its own rule, then the fields against each other. Has tells
// which keys were written, for the rules that are about that; nil when nobody knows.
func (j *Job) faults(env Environment, has func(string) bool) []fault {
	var all []fault
	v := reflect.ValueOf(j).Elem()
	for _, f := range fields {
		if value := v.FieldByIndex(f.index); !f.absent(value, has) {
			all = append(all, f.check(value)...)
		}
	}
	all = append(all, known("model.family", j.Model.Family, env.Families)...)
	switch {
	case j.Schedule == planFile:
		all = append(all, fault{key: "schedule", message: "schedule is file: without a path; write it behind the colon", nearest: "file:plan.txt"})
	case j.Schedule != AutoSchedule && j.PlanFile() == "":
		all = append(all, known("schedule", j.Schedule, env.Schedules)...)
	}
	all = append(all, known("averaging.method", j.Averaging.Method, env.Methods)...)
	all = append(all, j.Model.faults()...)
	all = append(all, j.Data.faults(has)...)
	all = append(all, j.Optimizer.faults(has)...)
	all = append(all, j.budgetFaults(has)...)
	all = append(all, j.Devices.faults(has)...)
	all = append(all, j.eachStage()...)
	return append(all, j.divides()...)
}

// absent reports whether a number that may be left out is not there.
func (f field) absent(v reflect.Value, has func(string) bool) bool {
	return f.rule.optional && v.IsZero() && (has == nil || !has(f.key))
}

// check holds a value to the rule of its field.
func (f field) check(v reflect.Value) []fault {
	r := f.rule
	wrong := func(found, nearest string) []fault {
		return []fault{{key: f.key, message: f.key + " wants " + f.wants() + "; found " + found, nearest: nearest}}
	}
	switch x := v.Interface().(type) {
	case Count:
		if x != Auto && !r.holds(float64(x)) {
			return wrong(strconv.Itoa(int(x)), r.closest(float64(x)))
		}
	case Factor:
		if x != AutoFactor && !r.holds(float64(x)) {
			return wrong(number(float64(x)), r.closest(float64(x)))
		}
	case time.Duration:
		if x < 0 {
			return wrong(x.String(), "0")
		}
	case int:
		if !r.holds(float64(x)) {
			return wrong(strconv.Itoa(x), r.closest(float64(x)))
		}
	case float64:
		if !r.holds(x) {
			return wrong(number(x), r.closest(x))
		}
	case string:
		if near, ok := r.allows(x); !ok {
			return wrong("text "+strconv.Quote(x), near)
		}
	case []string:
		if n := len(x); n < r.minItems || r.maxItems > 0 && n > r.maxItems {
			return wrong(fmt.Sprintf("a list of %d", n), "")
		}
		if r.oneof != nil {
			return f.checkWords(x, wrong)
		}
		if i := slices.Index(x, ""); i >= 0 {
			return []fault{{key: item(f.key, i), message: item(f.key, i) + " is empty; remove the entry or write one"}}
		}
	case []float64:
		return f.checkNumbers(x, wrong)
	case []time.Duration:
		return f.checkTimes(x, wrong)
	}
	return nil
}

func (f field) checkTimes(x []time.Duration, wrong func(found, nearest string) []fault) []fault {
	if len(x) < f.rule.minItems {
		return wrong(fmt.Sprintf("a list of %d", len(x)), "")
	}
	if i := slices.IndexFunc(x, func(t time.Duration) bool { return t < 0 }); i >= 0 {
		return wrong(x[i].String(), "0")
	}
	return nil
}

// checkWords checks a list of words, or a word alone.
func (f field) checkWords(x []string, wrong func(found, nearest string) []fault) []fault {
	var all []fault
	for i, word := range x {
		near, ok := f.rule.allows(word)
		switch {
		case ok, len(x) == 1 && word == f.rule.alone:
		case len(x) == 1:
			return wrong("text "+strconv.Quote(word), nearest.Word(word, append(slices.Clip(f.rule.oneof), f.rule.alone)))
		case word == f.rule.alone:
			all = append(all, fault{
				key: item(f.key, i), message: fmt.Sprintf("%s is %s, which stands alone, for all of the list", item(f.key, i), word), nearest: f.key + ": " + word,
			})
		default:
			all = append(all, fault{
				key: item(f.key, i), nearest: near,
				message: item(f.key, i) + " wants " + oneOf(f.rule.oneof) + "; found text " + strconv.Quote(word),
			})
		}
	}
	return all
}

func (f field) checkNumbers(x []float64, wrong func(found, nearest string) []fault) []fault {
	r := f.rule
	if n := len(x); n < r.minItems || r.maxItems > 0 && n > r.maxItems {
		return wrong(fmt.Sprintf("a list of %d", n), "")
	}
	if r.each != "" && len(x) == 1 && !r.holds(x[0]) {
		return wrong(number(x[0]), r.closest(x[0]))
	}
	var all []fault
	for i := range x {
		if !r.holds(x[i]) {
			all = append(all, fault{
				key:     item(f.key, i),
				message: item(f.key, i) + " wants a number" + r.interval() + "; found " + number(x[i]),
				nearest: r.closest(x[i]),
			})
		}
	}
	return all
}

// allows reports whether a text is allowed, and the nearest that is.
func (r rule) allows(x string) (string, bool) {
	switch {
	case r.oneof != nil:
		return nearest.Word(x, r.oneof), slices.Contains(r.oneof, x)
	case r.pattern != nil:
		return "", r.pattern.MatchString(x)
	case r.path, r.optional:
		return "", true // empty: there is none
	}
	return "", x != ""
}

// item is the key of an entry of a list.
func item(key string, i int) string { return fmt.Sprintf("%s[%d]", key, i) }

// known checks a name that another package's table holds.
func known(key, name string, names []string) []fault {
	if name == "" || names == nil || slices.Contains(names, name) {
		return nil
	}
	return []fault{{
		key:     key,
		message: fmt.Sprintf("%s wants %s; found %q", key, oneOf(names), name),
		nearest: nearest.Word(name, names),
	}}
}

// faults checks that the model comes from one place.
func (m Model) faults() []fault {
	switch {
	case m.Family == "" && m.From == "":
		return []fault{{
			key:     "model.family",
			message: `missing key "model.family" (or "model.from", a directory to start from, whose config.json names it)`,
		}}
	case m.From != "" && m.Config != nil:
		return []fault{{
			key:     "model.config",
			message: "model.config stands beside model.from, whose config.json already says it; remove one of them",
		}}
	case m.From == "" && m.Config == nil:
		return []fault{{
			key:     "model.config",
			message: `missing key "model.config" (or "model.from", a directory to start from)`,
		}}
	}
	return nil
}

// faults refuses a key that has no effect beside another.
func (d Data) faults(has func(string) bool) []fault {
	if len(d.Validation) == 0 || has == nil || !has("data.holdout") {
		return nil
	}
	return []fault{{
		key:     "data.holdout",
		message: "data.holdout stands beside data.validation, which says what is evaluated on; remove one of them",
	}}
}

// faults checks the optimizer's fields against each other: what the optimizer does not read is refused, since a setting
// that is silently without effect costs its author a run.
func (o Optimizer) faults(has func(string) bool) []fault {
	var all []fault
	add := func(key, nearest, format string, args ...any) {
		all = append(all, fault{key: key, nearest: nearest, message: fmt.Sprintf(format, args...)})
	}
	if o.T0 != 0 && o.Name != "asgd" {
		add("optimizer.t0", "", "optimizer.t0 is read by asgd only; the optimizer is %s", o.Name)
	}
	betas := o.Name != "sgd" && o.Name != "asgd"
	if o.Name != "sgd" {
		if o.Momentum != 0 && betas {
			add("optimizer.momentum", "betas", "optimizer.momentum is read by sgd only; %s has betas", o.Name)
		} else if o.Momentum != 0 {
			add("optimizer.momentum", "", "optimizer.momentum is read by sgd only; the optimizer is %s", o.Name)
		}
		if o.Nesterov {
			add("optimizer.nesterov", "", "optimizer.nesterov is read by sgd only; the optimizer is %s", o.Name)
		}
	} else if o.Nesterov && o.Momentum == 0 {
		add("optimizer.nesterov", "", "optimizer.nesterov looks ahead along the momentum, and optimizer.momentum is 0; set it, as to 0.9")
	}
	for _, key := range []string{"betas", "epsilon"} {
		if key := "optimizer." + key; !betas && has != nil && has(key) {
			add(key, "", "%s is read by adam and adamw only; the optimizer is %s", key, o.Name)
		}
	}
	return all
}

// eachStage checks that a list with an entry for each stage has as many.
func (j *Job) eachStage() []fault {
	n, k := len(j.Recompute), int(j.Stages)
	if n <= 1 || k <= 0 || n == k*max(1, int(j.Chunks)) || j.Chunks == Auto && n%k == 0 { // else the schedule says how many chunks
		return nil
	}
	what := strconv.Itoa(k) + " (stages)"
	if j.Chunks > 1 {
		what = fmt.Sprintf("%d (stages times chunks)", k*int(j.Chunks))
	}
	return []fault{{
		key:     "recompute",
		message: fmt.Sprintf("recompute has entries for %d stages, and there are %s; a word alone stands for all", n, what),
	}}
}

// divides checks that the micro-batches cut the batch evenly: the mean of a batch's gradients weighs every sample the
// same, and the stages' buffers have one size.
func (j *Job) divides() []fault {
	m, batch := int(j.MicroBatches), j.Train.Batch
	if m <= 0 || batch <= 0 || batch%m == 0 {
		return nil
	}
	below, above := NearestDivisors(batch, m)
	near := []string{strconv.Itoa(below)}
	if above > 0 {
		near = append(near, strconv.Itoa(above))
	}
	return []fault{{
		key:     "micro_batches",
		message: fmt.Sprintf("micro_batches is %d, which does not divide train.batch, %d", m, batch),
		nearest: strings.Join(near, " or "),
	}}
}
