package tuner

import (
	"fmt"

	"github.com/avgpipe/avgpipe/internal/words"
)

// sampleWorth is how much a sample counts where so many pipelines take a batch each between two averagings, over one in the batch of a single pipeline, 0..1. A round moves the model as a step of the
// batch of all of them would. Of batches of B samples, training to a target needs in proportion
//
//	S(B) = 1 + B / critical
//
// samples, where critical is the batch with which it needs twice as many as with small ones (McCandlish, Kaplan, Amodei et al., An Empirical Model of Large-Batch Training, 2018, equation 2.11).
// 1 where critical is not known, which is 0.
func sampleWorth(critical float64, batch, pipelines int) float64 {
	if critical == 0 {
		return 1
	}
	b := float64(batch)
	return (critical + b) / (critical + b*float64(pipelines))
}

// UnknownGain is what each further pipeline must gain, as a part of what one pipeline does, where nobody knows how many more samples it needs for the same loss: as if the critical batch
// were that of 19 pipelines. A batch that a user has chosen well is below the critical one, and in most cases not that far below. It is twice what measured throughputs scatter by.
const UnknownGain = 0.05

// gain is what each further pipeline must gain.
func (c *Candidate) gain() float64 {
	if c.SampleWorth == 0 {
		return UnknownGain
	}
	return Tie
}

// Merit is the progress of pipelines of which each further one must gain a part of what one does.
func Merit(progress float64, pipelines int, gain float64) float64 {
	return progress / (1 + gain*float64(pipelines-1))
}

// progress is a throughput in samples as those of a single pipeline count, a second: what the time to a target is inverse to.
func (c *Candidate) progress(throughput float64) float64 {
	if c.SampleWorth == 0 {
		return throughput
	}
	return throughput * c.SampleWorth
}

// why says what a comparison with the winner is of, where not all samples count alike.
func (c *Candidate) why(winner *Candidate) string {
	if c.SampleWorth == winner.SampleWorth {
		return ""
	}
	return fmt.Sprintf(" (a sample counts %.0f%% with %s, %.0f%% with %s)", 100*c.SampleWorth, words.Count(c.Pipelines, "pipeline"), 100*winner.SampleWorth, words.Count(winner.Pipelines, "pipeline"))
}

// weighed says what the choice of the number of pipelines leaves out.
func (o *Outcome) weighed(chosen *Candidate) []string {
	switch {
	case o.open && o.critical == 0 && chosen.Pipelines > 1:
		return []string{fmt.Sprintf("%s were chosen by samples a second, of which each further one had to gain %.0f%%; they need more samples than one for the same loss, how many is not known: with train.critical_batch the choice is by the time to a target",
			words.Count(chosen.Pipelines, "pipeline"), 100*UnknownGain)}
	case !o.open && o.critical > 0:
		return []string{"pipelines is given, so train.critical_batch weighs nothing; with pipelines: auto it does"}
	}
	return nil
}
