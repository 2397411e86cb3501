package data

import "math"

// numbers are samples that a user's program makes, from the number of which they are all that is known here. What is written is the number of a
// sample in an epoch: that of the sample, and All for each epoch before, so that what is random in a sample can differ from epoch to epoch.
type numbers struct {
	from, n uint64 // those of all
	all     uint64
}

// openNumbers divides the samples: into those that are made to be trained on and to be evaluated on, or by the share that is held out.
func (o *opener) openNumbers(s *Set) (err error) {
	train, held := uint64(o.Counts.Train), uint64(o.Counts.HeldOut) //nolint:gosec // not negative
	all := train + held
	if held > 0 {
		s.train, s.held = numbers{n: train, all: all}, numbers{from: train, n: held, all: all}
		return nil
	}
	s.train, s.held, err = o.split(numbers{n: train, all: all})
	return err
}

func (n numbers) count() uint64 { return n.n }

func (n numbers) fill(b Batch, j int, i uint64, of visit) error {
	epochs := math.MaxInt32 / n.all                     // of so many the numbers differ; then they begin anew
	number := int32(n.from + i + of.epoch%epochs*n.all) //nolint:gosec // below math.MaxInt32
	for _, to := range [...][]int32{b.Tokens, b.Targets} {
		if to != nil {
			to[j] = number
		}
	}
	return nil
}
