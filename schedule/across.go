package schedule

import (
	"fmt"

	"github.com/avgpipe/avgpipe/internal/words"
)

// mostAcross bounds the ops of a plan that runs on across batches: no more than are simulated or sent to workers in no time. With K stages, and M
// micro-batches in a batch, S batches have a bubble of (K-1)/(S*M+K-1); on 8 stages that is half a percent by then.
const mostAcross = 1 << 15

// across is how many batches the plan of a schedule runs on across that steps inside of them: the most that divide a round and
// keep to mostAcross.
func (r Request) across() int {
	batches := max(1, r.RoundBatches)
	across := min(batches, max(1, mostAcross/(3*r.Devices)/r.MicroBatches))
	for batches%across != 0 {
		across--
	}
	return across
}

// Batches is how many batches of so many micro-batches the plan runs on across: 1 for most plans. In one of several, micro-batch m is that of
// number m mod microBatches of batch m/microBatches, optimizer steps stand where batches end, and the pipeline drains after the last one.
func (p Plan) Batches(microBatches int) int {
	if all := p.MicroBatches(); microBatches > 0 && all > microBatches && all%microBatches == 0 && p.Updates() > 0 {
		return all / microBatches
	}
	return 1
}

// RoundBatches is after how many batches of the load a pipeline must be drained at the latest: the most that both its batches and those
// between two averagings can be divided by.
func (l Load) RoundBatches() int {
	a, b := max(1, l.Batches), l.AverageEvery
	for b > 0 {
		a, b = b, a%b
	}
	return a
}

// checkAcross refuses numbers of batches that a plan which runs on across several never comes to.
func (l Load) checkAcross(plan Plan) error {
	across := plan.Batches(l.MicroBatches)
	if l.Batches%across != 0 {
		return fmt.Errorf("load: batches is %d, and the plan runs on across %d; want a multiple of that", l.Batches, across)
	}
	if l.AverageEvery%across != 0 {
		return fmt.Errorf("load: average every is %d batches, and the plan runs on across %d, so that stages agree after them alone; want a multiple of that",
			l.AverageEvery, across)
	}
	return nil
}

// runs is the load counted in runs of a plan that runs on across so many batches.
func (l Load) runs(across int) Load {
	l.Batches /= across
	l.AverageEvery /= across
	return l.withDefaults()
}

// acrossReason says for how many batches a plan runs on.
func acrossReason(r Request) string {
	across, round := r.across(), max(1, r.RoundBatches)
	switch {
	case r.Devices == 1:
		return ""
	case across == 1:
		return "; the pipeline drains after each batch"
	case across == round:
		return fmt.Sprintf("; the pipeline runs on across the %d batches of a round and drains after them", across)
	}
	return fmt.Sprintf("; of the %d batches of a round the pipeline runs on across %d, then drains: a plan has at most %d ops", round, across, mostAcross)
}

// fewInFlight is fewMicroBatches for a plan that runs on across batches: it fills the pipeline once, and then has too few in flight
// where the weights that those after them read are not there yet.
func fewInFlight(plan Plan, r Request) string {
	inFlight := InFlight(plan)[0]
	if inFlight >= r.Devices {
		return ""
	}
	return fmt.Sprintf("; %s in flight cannot fill %s: at least %.0f%% of the time is bubble",
		words.Count(inFlight, "micro-batch"), words.Count(r.Devices, "stage"), 100*(1-float64(inFlight)/float64(r.Devices)))
}
