package tuner

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/avgpipe/avgpipe/internal/words"
	"github.com/avgpipe/avgpipe/schedule"
)

// Space is what Search chooses from. A choice that the job gives is a list of one.
type Space struct {
	Batch   int // samples in a batch of one pipeline
	Targets []Target
	// Pipelines to choose from, ascending. Empty: 1, 2 and so on, until no more fit the memory or more of them gain nothing.
	Pipelines []int
	// MicroBatches to choose from: divisors of Batch.
	MicroBatches []int
	Schedules    []string
	// Chunks of the model on each device; 0: what the schedule takes.
	Chunks int
	// Recompute to choose from, the cheapest first: none, block, full. With one entry every stage does that.
	Recompute []string
	// RecomputeByStage, unless empty, is given for each stage.
	RecomputeByStage []string
	// CriticalBatch is the samples in a batch with which training needs twice as many samples to a target as with small ones; 0 where nobody knows. With it, pipelines are chosen by the time to
	// a target, else by samples a second.
	CriticalBatch float64
	// AverageEvery is the batches between two averagings, which are those of a round with a single pipeline as well.
	AverageEvery int
	// AwaitRound: where they average, pipelines wait for each other (averaging.pull: new).
	AwaitRound bool
	// ExchangeNorm: stages exchange the norm of the gradient before they step (optimizer.clip_norm).
	ExchangeNorm bool
}

// Tie is how near two throughputs are, as a part of the larger, that count as equal: a confirming run cannot tell them apart. It is
// also what each further pipeline must gain, since it costs a copy of the model and averages over one more, where it is known how many more samples it needs.
const Tie = 0.01

// merit is a progress less what each further pipeline must gain.
func merit(c *Candidate, throughput float64) float64 {
	return Merit(c.progress(throughput), c.Pipelines, c.gain())
}

// mostPipelines ends the search for a number of pipelines; each costs a copy of the model, and gains end long before.
const mostPipelines = 16

// Validate reports the first part that no search can be made in.
func (s Space) Validate() error {
	if s.Batch < 1 || len(s.Targets) == 0 || len(s.MicroBatches) == 0 || len(s.Schedules) == 0 {
		return fmt.Errorf("tuner: a batch of %d, %d ways to use the devices, %d counts of micro-batches, %d schedules: at least 1 of each",
			s.Batch, len(s.Targets), len(s.MicroBatches), len(s.Schedules))
	}
	for _, m := range s.MicroBatches {
		if m < 1 || s.Batch%m != 0 {
			return fmt.Errorf("tuner: %d micro-batches of a batch of %d: want a divisor", m, s.Batch)
		}
	}
	for _, n := range s.Pipelines {
		if n < 1 {
			return fmt.Errorf("tuner: %d pipelines: at least 1", n)
		}
	}
	if len(s.Recompute) == 0 && len(s.RecomputeByStage) == 0 {
		return errors.New("tuner: no kind of recomputation to choose from; none is one")
	}
	for _, t := range s.Targets {
		if t.Profile == nil || t.Devices < 1 || t.Devices > len(t.Profile.Devices) {
			return fmt.Errorf("tuner: %d stages on devices that the profile does not have", t.Devices)
		}
		if err := t.Profile.Validate(); err != nil {
			return fmt.Errorf("tuner: %w", err)
		}
	}
	return nil
}

// Outcome is what Search found.
type Outcome struct {
	Considered int
	// Ranked are the candidates that fit, the best first: by predicted throughput, of which each further pipeline must gain UnknownGain or Tie; of
	// those within Tie of the best the one with fewer pipelines first. The first has Won.
	Ranked []Candidate
	// Refused are the others, with the reason.
	Refused []Candidate

	open     bool    // the number of pipelines was
	critical float64 // Space.CriticalBatch
}

// NoFitError says that no candidate fits the memory.
type NoFitError struct {
	Shortage           // the least of all candidates'
	Nearest  Candidate // whose it is
}

func (e *NoFitError) Error() string {
	return fmt.Sprintf("no plan fits the memory: of what comes nearest, %v", e.Shortage)
}

// Search predicts every candidate and ranks them. It depends on its argument only. When nothing fits the memory it returns a
// *NoFitError; when the model has fewer layers than every target has stages, a *StagesError.
func Search(s Space) (*Outcome, error) {
	if err := s.Validate(); err != nil {
		return nil, err
	}
	all, err := s.predictAll()
	if err != nil {
		return nil, err
	}
	out := rank(all)
	out.open, out.critical = len(s.Pipelines) == 0, s.CriticalBatch
	if len(out.Ranked) == 0 {
		return nil, noFit(all)
	}
	return out, nil
}

// Fits looks for a candidate that fits the memory, and ends with the first. Where none does, its errors are those of Search.
func (s Space) Fits() error {
	if err := s.Validate(); err != nil {
		return err
	}
	pipelines := 1
	if len(s.Pipelines) > 0 {
		pipelines = s.Pipelines[0]
	}
	var all []*layout
	var short *StagesError
	for _, t := range s.Targets {
		for _, m := range s.MicroBatches {
			for _, name := range s.Schedules {
				l, err := s.predict(t, pipelines, m, name)
				switch e, is := errors.AsType[*StagesError](err); {
				case is:
					short = e
				case err != nil:
					return err
				case l.Verdict == "":
					return nil
				default:
					all = append(all, l)
				}
			}
		}
	}
	if len(all) == 0 {
		return short
	}
	return noFit(all)
}

// noFit says what the candidate lacks that lacks the least; where none of them lacks memory, why one fails.
func noFit(all []*layout) error {
	var nearest *layout
	var failed error
	for _, l := range all {
		if l.Verdict == NoMemory && (nearest == nil || l.shortage.Bytes() < nearest.shortage.Bytes()) {
			nearest = l
		}
		if l.Verdict == Fails && failed == nil {
			failed = fmt.Errorf("tuner: no candidate can run: %s with %s: %s", l.Schedule, words.Count(l.MicroBatches, "micro-batch"), l.Reason)
		}
	}
	if nearest == nil {
		return failed
	}
	return &NoFitError{Shortage: *nearest.shortage, Nearest: nearest.Candidate}
}

// predictAll is every candidate of the space with its prediction or the reason why it has none.
func (s Space) predictAll() ([]*layout, error) {
	var all []*layout
	var short *StagesError
	for _, t := range s.Targets {
		found, err := s.predictTarget(t)
		if e, is := errors.AsType[*StagesError](err); is {
			short = e
			continue
		}
		if err != nil {
			return nil, err
		}
		all = append(all, found...)
	}
	if len(all) == 0 && short != nil {
		return nil, short
	}
	return all, nil
}

// predictTarget goes through the numbers of pipelines. Where they are open it ends when neither of two further pipelines gains.
func (s Space) predictTarget(t Target) ([]*layout, error) {
	counts, open := s.Pipelines, len(s.Pipelines) == 0
	for n := 1; open && n <= mostPipelines; n++ {
		counts = append(counts, n)
	}
	var all []*layout
	best, idle := 0.0, 0
	for _, n := range counts {
		most, fits := 0.0, false
		for _, m := range s.MicroBatches {
			for _, name := range s.Schedules {
				l, err := s.predict(t, n, m, name)
				if err != nil {
					return nil, err
				}
				all = append(all, l)
				if l.Verdict == "" {
					most, fits = max(most, l.progress(l.Predicted.SamplesPerSecond)), true
				}
			}
		}
		idle++
		if most > best*(1+Tie) {
			best, idle = most, 0
		}
		if open && (!fits || idle == 2) {
			break
		}
	}
	return all, nil
}

// chunksOf is how many stages of a schedule lie on each device. A number that the job gives stands for the schedules that can
// have it.
func (s Space) chunksOf(name string) (int, error) {
	n, err := schedule.Chunks(name, s.Chunks)
	if err != nil && len(s.Schedules) > 1 {
		return schedule.Chunks(name, 0)
	}
	return n, err
}

// predict lays one candidate out. What the devices cannot hold as it is, is changed as far as the space allows; the fastest of
// what then fits is taken.
func (s Space) predict(t Target, n, m int, name string) (*layout, error) {
	chunks, err := s.chunksOf(name)
	l := &layout{
		Candidate: Candidate{
			Devices: t.Devices, Chunks: chunks, Pipelines: n, MicroBatches: m, RoundBatches: s.AverageEvery, Schedule: name, Threads: t.Threads,
		},
		profile: t.Profile, space: &s, samples: s.Batch / m, homes: homesOf(name, t.Devices, chunks),
	}
	if err != nil {
		return l.fail(err), nil
	}
	if s.CriticalBatch > 0 {
		l.SampleWorth = sampleWorth(s.CriticalBatch, s.Batch, n)
	}
	l.Recompute = s.RecomputeByStage
	if len(l.Recompute) != len(l.homes) {
		if len(l.Recompute) > 0 {
			return l.fail(fmt.Errorf("recompute is given for %d stages, this has %d", len(l.Recompute), len(l.homes))), nil
		}
		l.Recompute = slices.Repeat([]string{s.Recompute[0]}, len(l.homes))
	}
	if err := l.cut(nil, nil); err != nil {
		if _, short := errors.AsType[*StagesError](err); short && chunks > 1 && t.Devices <= len(t.Profile.Layers) {
			return l.fail(err), nil // one chunk a device is possible
		}
		return nil, err
	}
	if err := l.lay(); err != nil {
		return l.fail(err), nil
	}
	if chunks > 1 { // of an even cut of stages and one of devices the faster; which one that is depends on where the bubbles are
		if other := l.changed(func(l *layout) error { return l.cut(l.homes, nil) }); other != nil && other.better(l) {
			l = other
		}
	}
	if l.shortage == nil {
		return l, nil
	}
	return s.repair(l), nil
}

// fail marks a candidate that cannot be laid out.
func (l *layout) fail(err error) *layout {
	l.Verdict, l.Reason = Fails, err.Error()
	return l
}

// lay prices, plans and simulates a layout whose split is there.
func (l *layout) lay() error {
	l.price()
	for _, step := range []func() error{l.generate, l.memory, l.simulate} {
		if err := step(); err != nil {
			return err
		}
	}
	if l.shortage != nil {
		l.Verdict, l.Reason = NoMemory, l.shortage.String()
	}
	return nil
}

// cut splits the model so that stages take as long as each other, or devices, where it is told the device of each stage. fits,
// unless nil, says which layers a stage's device can hold.
func (l *layout) cut(homes []int, fits func(stage, from, to int) bool) (err error) {
	// Prefix sums, so that a run of layers costs one subtraction. They never fall: what is measured of several layers together may say of one that it takes less than nothing.
	sums := make([][3]float64, len(l.profile.Layers)+1) // without recomputation, with it
	for i, one := range l.profile.Layers {
		f := one.Forward.At(l.samples)
		sums[i+1][0] = sums[i][0] + max(0, f+one.Backward.At(l.samples))
		sums[i+1][1] = sums[i][1] + max(0, 2*f+one.Backward.At(l.samples))
	}
	l.Split, err = Partition(Chain{
		Layers: len(l.profile.Layers), Stages: len(l.homes), Homes: homes, Fits: fits,
		Cost: func(s, from, to int) float64 {
			kind := 0
			if recomputes(l.Recompute[s]) {
				kind = 1
			}
			return (sums[to][kind] - sums[from][kind]) * l.profile.Devices[l.homes[s]].Slowdown
		},
		Transfer: func(stage, at int) float64 {
			link := l.profile.between(l.homes[stage-1], l.homes[stage])
			return link.LatencySeconds + link.SecondsPerByte*l.profile.Layers[at-1].OutputBytes*float64(l.samples)
		},
	})
	return err
}

// rank orders the candidates and says why each lost.
func rank(all []*layout) *Outcome {
	out := &Outcome{Considered: len(all)}
	var fit []*layout
	seen := map[string]*layout{}
	for _, l := range all {
		if l.Verdict == "" {
			key := fmt.Sprint(l.Devices, l.Threads, l.Pipelines, l.MicroBatches, l.Split, l.Recompute, l.plan)
			first := seen[key]
			if first == nil {
				seen[key] = l
				fit = append(fit, l)
				continue
			}
			l.Verdict, l.Reason = NotNeeded, "the same plan as "+first.Schedule
		}
		out.Refused = append(out.Refused, l.Candidate)
	}
	slices.SortStableFunc(fit, func(a, b *layout) int {
		return cmp.Compare(merit(&b.Candidate, b.Predicted.SamplesPerSecond), merit(&a.Candidate, a.Predicted.SamplesPerSecond))
	})
	for _, l := range fit {
		out.Ranked = append(out.Ranked, l.Candidate)
	}
	promote(out.Ranked, func(c *Candidate) float64 { return c.Predicted.SamplesPerSecond }, Tie)
	explain(out.Ranked, func(c *Candidate) float64 { return c.Predicted.SamplesPerSecond }, Tie, "predicted")
	return out
}

// promote puts first, of the candidates whose throughput is within tie of the best, the one with the fewest pipelines; of those
// the one that holds the least memory. The others keep their order.
func promote(ranked []Candidate, throughput func(*Candidate) float64, tie float64) {
	if len(ranked) == 0 {
		return
	}
	best := 0
	for i := range ranked {
		if merit(&ranked[i], throughput(&ranked[i])) < merit(&ranked[0], throughput(&ranked[0]))*(1-tie) {
			break
		}
		a, b := &ranked[i], &ranked[best]
		if a.Pipelines < b.Pipelines || a.Pipelines == b.Pipelines && a.Predicted.Bytes() < b.Predicted.Bytes() {
			best = i
		}
	}
	first := ranked[best]
	copy(ranked[1:best+1], ranked[:best])
	ranked[0] = first
}

// Bytes is the memory of all stages together.
func (p Prediction) Bytes() int64 {
	n := int64(0)
	for _, s := range p.Stages {
		n += s.Memory.Total()
	}
	return n
}

// explain says how each candidate compares with the first, which has won.
func explain(ranked []Candidate, throughput func(*Candidate) float64, tie float64, how string) {
	for i := range ranked {
		c, best := &ranked[i], &ranked[0]
		lead := best.progress(throughput(best))/c.progress(throughput(c)) - 1
		how := how + c.why(best)
		switch {
		case i == 0:
			c.Verdict, c.Reason = Won, "the highest throughput, "+how
			if c.SampleWorth > 0 {
				c.Reason = fmt.Sprintf("the least time to a target, %s, where a sample counts %.0f%% of one of a single pipeline", how, 100*c.SampleWorth)
			}
		case lead < -tie && merit(c, throughput(c)) > merit(best, throughput(best))*(1+tie):
			c.Verdict, c.Reason = NotRun, fmt.Sprintf("%.1f%% faster, %s, than the chosen one is; not among those that were run", 100*(1/(1+lead)-1), how)
		case lead < -tie:
			c.Verdict, c.Reason = Equal, fmt.Sprintf("%.1f%% faster, %s, with %s more, of which each must gain %.0f%%",
				100*(1/(1+lead)-1), how, words.Count(c.Pipelines-best.Pipelines, "pipeline"), 100*c.gain())
		case lead > tie:
			c.Verdict, c.Reason = Slower, fmt.Sprintf("%.1f%% slower, %s", 100*lead, how)
		case c.Pipelines > best.Pipelines:
			c.Verdict, c.Reason = Equal, fmt.Sprintf("as fast within %.0f%%, %s, with %s more",
				100*tie, how, words.Count(c.Pipelines-best.Pipelines, "pipeline"))
		default:
			c.Verdict, c.Reason = Equal, fmt.Sprintf("as fast within %.0f%%, %s, and holds ", 100*tie, how)
			switch more := c.Predicted.Bytes() - best.Predicted.Bytes(); {
			case more > 0:
				c.Reason += bytesText(more) + " more"
			case more < 0:
				c.Reason += bytesText(-more) + " less"
			default:
				c.Reason += "as much"
			}
		}
	}
}
