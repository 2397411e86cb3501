package pipeline

import (
	"github.com/avgpipe/avgpipe/elastic"
	"github.com/avgpipe/avgpipe/stage/flat"
)

// drift is how far the pipelines of a shard move from its center, where that is bounded. Each message says how far its pipeline is, and each sum what those of its pipelines add
// up to: so all copies of the center decide alike.
type drift struct {
	elastic.Drift // as decided for the round after the last completed one
	inForce       bool
	changed       *DriftReport // of the round that has just completed; nil: the next is of the same kind
	settled       int          // segments that have completed the round in progress
	a, b          []float32    // sampled elements
}

// DriftReport says that the rounds after Round are synchronous, or no longer, for how far the pipelines of a stage had moved from its center.
type DriftReport struct {
	Stage       int
	Round       uint64
	Drift       float64 // as a share of the center's length
	Synchronous bool
}

// bound begins to bound the drift of a stage whose next round is synchronous, or not.
func (s *shard) bound(synchronous bool) error {
	s.drift.Drift = elastic.NewDrift(s.needs.MaxDrift, synchronous)
	s.drift.inForce = s.drift.Synchronous()
	for _, of := range s.segments {
		if err := of.center.Synchronize(s.drift.inForce); err != nil {
			return err
		}
	}
	return nil
}

// timing is that of a round of a segment which is in progress.
func (s *shard) timing(of *segment, round uint64) elastic.Timing {
	if s.drift.inForce {
		return elastic.After
	}
	return of.needs.TimingOf(round)
}

// measure notes how far a pipeline that trains here is from the center of a segment, before it is pulled. On the executor.
func (s *shard) measure(of *segment, pipeline int, round uint64) {
	if s.drift.Bounded() {
		of.squares[pipeline][round%2] = s.square(of, of.weights[pipeline], of.vectors.Center)
	}
}

// square is the squared distance of two vectors of a segment, or of one of them from 0, from a sample of their elements. Copies whose original lies in the same vector do not count.
func (s *shard) square(of *segment, x, y flat.Vector) (sum float64) {
	elastic.Sampled(of.From, of.To, s.lead().Shape().Parameters, func(from, to int) {
		for _, r := range s.layout {
			if a, b := max(from, r.From), min(to, r.To); a < b && !r.IsCopy() {
				sum = s.addSquares(sum, of, x, y, a, b)
			}
		}
	})
	return sum
}

// addSquares adds those of the elements from one to another.
func (s *shard) addSquares(sum float64, of *segment, x, y flat.Vector, from, to int) float64 {
	d := &s.drift
	d.a, d.b = sized(d.a, to-from), sized(d.b, to-from)
	x.Read(d.a, from-of.From)
	if y == nil {
		clear(d.b)
	} else {
		y.Read(d.b, from-of.From)
	}
	for i, v := range d.a {
		e := float64(v) - float64(d.b[i])
		sum += e * e
	}
	return sum
}

func sized(v []float32, n int) []float32 {
	if cap(v) < n {
		return make([]float32, n)
	}
	return v[:n]
}

// addSquare adds how far the sender of a message was. On the executor.
func (of *segment) addSquare(a elastic.Action) {
	if of.squares == nil {
		return
	}
	if a.First {
		of.squared = 0
	}
	if of.here || a.Pipeline == of.sender() { // whose message is the sum of those of all
		of.squared += of.squares[a.Pipeline][a.Round%2]
	}
}

// settle decides about the next round once all segments have completed one, before the center of the last one moves. The sums go over segments in their order. On the executor.
func (s *shard) settle(of *segment, a elastic.Action) {
	d := &s.drift
	if !d.Bounded() {
		return
	}
	of.length = s.square(of, of.vectors.Center, nil)
	if d.settled++; d.settled < len(s.segments) {
		return
	}
	d.settled = 0
	var square, length float64
	for _, part := range s.segments {
		square, length = square+part.squared, length+part.length
	}
	if share, changed := d.Complete(square/float64(s.count(a)), length); changed {
		d.changed = &DriftReport{s.index, a.Round, share, d.Synchronous()}
	}
}

// enforce begins synchronous rounds, or ends them, between two rounds.
func (s *shard) enforce() error {
	report := s.drift.changed
	if report == nil {
		return nil
	}
	s.drift.changed, s.drift.inForce = nil, report.Synchronous
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, of := range s.segments {
		if err := of.center.Synchronize(report.Synchronous); err != nil {
			return err
		}
	}
	if f := s.config.Events.OnDrift; f != nil {
		f(*report)
	}
	return nil
}
