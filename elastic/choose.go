package elastic

import "math"

// Step is what a step of training takes and sends, in seconds: of a pipeline whose last backward runs from the last layer of the model to the first, and whose next forward runs the
// other way. It is what StaleLayers and Tau choose by.
type Step struct {
	Layers  []LayerStep
	Links   []LinkStep
	Compute float64 // from a step to the next where nothing is exchanged
	Average float64 // the arithmetic of a round, which Tau reads: Compute has none of it then
}

// LayerStep is a layer of the model.
type LayerStep struct {
	Forward, Backward float64 // of a micro-batch
	Bytes             float64 // that a group sends in an exchange (Sends)
	Link              int     // that it goes by
}

// LinkStep is a link between groups: those of the stages of one node share it.
type LinkStep struct {
	SecondsPerByte float64
	Latency        float64 // one way; an exchange takes two
}

// Sends is how many bytes a group of so many pipelines sends in an exchange of so many elements with the others: messages to the owners of segments, and the sums of its own segments
// to all others. It gets as many.
func Sends(p Precision, elements, pipelines, groups int) float64 {
	if p == "" {
		p = Float32
	}
	vector := float64(pipelines*p.Bytes(elements) + p.Sums().Bytes(elements))
	return vector * float64(groups-1) / float64(groups)
}

// Tie is how much longer a step may take, as a part, with fewer late layers: measurements of links scatter by more.
const Tie = 0.01

// StaleLayers chooses how many layers of the model, from the input, take gradients late, of a step that takes so long: the fewest with which a step takes no longer than the least by more
// than Tie. A step is no shorter than what its link takes to carry all, so where that is longer than computing, more late layers than hide the rest gain nothing.
func StaleLayers(s Step) (k int, seconds float64) {
	took, least := make([]float64, len(s.Layers)+1), math.Inf(1)
	for k := range took {
		took[k] = s.Seconds(k)
		least = min(least, took[k])
	}
	for took[k] > least*(1+Tie) {
		k++
	}
	return k, took[k]
}

// Exchange is how long the busiest link takes to carry everything once, with the two hops.
func (s *Step) Exchange() (seconds float64) {
	for i, busy := range s.busy() {
		if busy > 0 {
			seconds = max(seconds, busy+2*s.Links[i].Latency)
		}
	}
	return seconds
}

// busy is how long each link carries what is sent in a step.
func (s *Step) busy() []float64 {
	all := make([]float64, len(s.Links))
	for _, l := range s.Layers {
		all[l.Link] += l.Bytes * s.Links[l.Link].SecondsPerByte
	}
	return all
}

// MostTau is the most batches in a round that Tau chooses, unless the user says otherwise.
const MostTau = 64

// hidden is how much longer a round may take, as a part, for an exchange that everybody waits for.
const hidden = 0.05

// Tau chooses how many batches a round has, of a method with such needs that averages updates, between two bounds: the fewest behind which the exchange and the arithmetic of averaging are hidden. With
// timing Before those are the batches that compute for as long, since a pipeline waits in a round for the center of the one before; with After, where all wait for the exchange, those beside which the
// exchange is at most a twentieth of a round. seconds is how long a batch then takes.
func Tau(s *Step, n Needs, least, most int) (tau int, seconds float64) {
	exchange, enough := s.Exchange(), 0.0 // seconds of computing
	if n.Timing == After {
		enough = exchange*(1-hidden)/hidden - s.Average
	} else {
		enough = exchange + s.Average
	}
	tau = least
	switch batches := math.Ceil(enough / s.Compute); {
	case enough <= 0:
	case batches < float64(most):
		tau = max(least, int(batches))
	default: // or nothing is computed
		tau = max(least, most)
	}
	return tau, s.RoundSeconds(n, tau) / float64(tau)
}

// RoundSeconds is how long a round of so many batches takes.
func (s *Step) RoundSeconds(n Needs, tau int) float64 {
	computes, exchange := float64(tau)*s.Compute+s.Average, s.Exchange()
	if n.Timing == After {
		return computes + exchange
	}
	return max(computes, exchange)
}
