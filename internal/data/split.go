package data

import (
	"fmt"
	"math"
)

// splitKey is the seed of the choice of what is held out: the same for every run, so that runs compare.
const splitKey = 0x5eed

// shuffled are the samples of a set from a place on, in an order of its own.
type shuffled struct {
	of    samples
	order permutation
	from  uint64
	n     uint64
}

func (s *shuffled) count() uint64 { return s.n }

func (s *shuffled) fill(b Batch, j int, i, key uint64) error {
	return s.of.fill(b, j, s.order.at(s.from+i), key)
}

// split holds a share of the samples out, at least one. Which ones, their number alone tells: not names, nor the seed.
func (o *opener) split(all samples) (train, held samples, err error) {
	n := all.count()
	if n < 2 {
		return nil, nil, &Error{Key: "data.files", Err: fmt.Errorf("the files hold %d sample, too few to train on some and hold out others", n)}
	}
	out := min(max(uint64(math.Round(o.Holdout*float64(n))), 1), n-1)
	order := newPermutation(splitKey, 0, n)
	return &shuffled{of: all, order: order, from: out, n: n - out}, &shuffled{of: all, order: order, n: out}, nil
}
