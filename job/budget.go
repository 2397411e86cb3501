package job

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/avgpipe/avgpipe/internal/strictyaml"
	"github.com/avgpipe/avgpipe/internal/words"
)

// Budget is how much a job trains on, in the terms that training counts in. The daemon keeps it beside the job.
type Budget struct {
	Samples uint64 `json:"samples"` // that all pipelines consume together, whole rounds
	Steps   uint64 `json:"steps"`   // optimizer steps of each pipeline
	Warmup  uint64 `json:"warmup"`  // of these: optimizer.warmup
	T0      uint64 `json:"t0"`      // of these: optimizer.t0
}

// budgetKey is one of the keys that give the budget.
type budgetKey struct {
	key   string
	given bool
	text  string // "1000 steps of 16 samples"
}

func (t Train) budgetKeys() []budgetKey {
	epochs := "epochs"
	if t.Epochs == 1 {
		epochs = "epoch"
	}
	return []budgetKey{
		{"train.steps", t.Steps != 0, words.Count(t.Steps, "step") + " of " + words.Count(t.Batch, "sample")},
		{"train.samples", t.Samples != 0, words.Count(t.Samples, "sample")},
		{"train.tokens", t.Tokens != 0, words.Count(t.Tokens, "token")},
		{"train.epochs", t.Epochs != 0, strictyaml.Number(t.Epochs) + " " + epochs},
	}
}

// Budget says what the file asks for: "1000 steps of 16 samples".
func (t Train) Budget() string {
	for _, k := range t.budgetKeys() {
		if k.given {
			return k.text
		}
	}
	return ""
}

// Wanted is how many samples the file asks for, before they are rounded up to whole rounds. It is 0 while that is not known: of
// epochs without the samples of one, of tokens without data.sequence.
func (j *Job) Wanted(epoch uint64) uint64 {
	switch t := j.Train; {
	case t.Samples > 0:
		return uint64(t.Samples)
	case t.Tokens > 0 && j.Data.Sequence > 0:
		return divideUp(uint64(t.Tokens), uint64(j.Data.Sequence))
	case t.Epochs > 0 && epoch > 0:
		return max(1, uint64(math.Ceil(t.Epochs*float64(epoch))))
	case t.Steps > 0:
		return uint64(t.Steps) * uint64(t.Batch)
	}
	return 0
}

// Resolved is the budget of a job whose pipelines are known, with epochs of so many samples; nil while that is not enough to know it.
// A step of the learning rate's schedule consumes a batch, whichever pipeline takes it, so each of N pipelines has an Nth of them.
func (j *Job) Resolved(epoch uint64) *Budget {
	wanted, n, batch, tau := j.Wanted(epoch), uint64(j.Pipelines), uint64(j.Train.Batch), uint64(max(j.Averaging.Tau, 1))
	if wanted == 0 || n == 0 || batch == 0 {
		return nil
	}
	steps := divideUp(wanted, n*batch*tau) * tau
	return &Budget{
		Samples: steps * n * batch, Steps: steps,
		Warmup: divideUp(uint64(j.Optimizer.Warmup), n), T0: divideUp(uint64(j.Optimizer.T0), n),
	}
}

func divideUp(a, b uint64) uint64 { return (a + b - 1) / b }

// checkBudget checks that one key gives the budget, and that the warm-up is within it.
func (c *checker) checkBudget() {
	var given, all []string
	written := false // perhaps with a value that is refused already
	for _, k := range c.Train.budgetKeys() {
		all = append(all, k.key)
		written = written || c.Has(k.key)
		if k.given {
			given = append(given, k.key)
		}
	}
	switch {
	case len(given) == 0 && !written:
		c.refuse(all[0], "", "missing key %q (or %s): how much to train on", all[0], strings.Join(all[1:], ", "))
	case len(given) > 1:
		c.refuse(given[1], "remove "+strings.Join(given[1:], " and ")+", or "+given[0], "%s stands beside %s; the budget is given once", given[1], given[0])
	case len(given) == 1:
		if key, nearest, problem := c.CheckWarmup(0); key != "" {
			c.refuse(key, nearest, "%s", problem)
		}
		if key, nearest, problem := c.CheckRound(0); key != "" {
			c.refuse(key, nearest, "%s", problem)
		}
	}
}

// CheckRound checks that a round takes less than twice the budget, which is rounded up to whole rounds, with epochs of so many samples. It returns the key that is wrong and the nearest value for it; nothing while the budget is not
// known, or the tau is left open.
func (j *Job) CheckRound(epoch uint64) (key, nearest, problem string) {
	wanted, step := j.Wanted(epoch), uint64(max(j.Train.Batch, 1))*uint64(max(j.Pipelines, 1))
	round := uint64(max(j.Averaging.Tau, 0)) * step
	if j.Averaging.Tau > 1 && wanted > 0 && wanted <= round/2 {
		return "averaging.tau", strconv.FormatUint(max(1, wanted/step), 10), fmt.Sprintf(
			"averaging.tau is %d, so a round takes %d samples, more than all of the budget (%s); want a shorter round or a larger budget", j.Averaging.Tau, round, j.Train.Budget())
	}
	return "", "", ""
}

// CheckWarmup checks that the learning rate has risen before the budget is used up. It returns the key that is wrong and the
// nearest value for it; nothing while the budget is not known.
func (j *Job) CheckWarmup(epoch uint64) (key, nearest, problem string) {
	wanted, batch := j.Wanted(epoch), uint64(max(j.Train.Batch, 1))
	if most := divideUp(wanted, batch); wanted > 0 && uint64(j.Optimizer.Warmup) > most {
		return "optimizer.warmup", strconv.FormatUint(most, 10), fmt.Sprintf(
			"optimizer.warmup is %d steps, more than the %d of the budget (%s)", j.Optimizer.Warmup, most, j.Train.Budget())
	}
	return "", "", ""
}
