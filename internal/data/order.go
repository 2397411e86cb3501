package data

import (
	"fmt"
	"math"
	"math/bits"
)

// Cursor says which samples one pipeline consumes at a step. All samples that a run ever consumes form one sequence, the epochs of the
// seed one after the other. N pipelines consume N*Batch consecutive positions of it at each step, pipeline i from i*Batch on. Where the number of
// pipelines changed, the sequence goes on from the position that all of them had reached.
type Cursor struct {
	Pipeline, Pipelines int    // 0..Pipelines-1
	Batch               int    // samples per step
	Step                uint64 // of the pipeline's optimizer, from 0
	Base                uint64 // the position where Since begins
	Since               uint64 // the first step with so many pipelines; at most Step
}

// Position returns the position of sample j of the batch.
func (c Cursor) Position(j int) uint64 {
	return c.Base + ((c.Step-c.Since)*uint64(c.Pipelines)+uint64(c.Pipeline))*uint64(c.Batch) + uint64(j)
}

// rounds of the Feistel network. Four suffice for a pseudorandom permutation when the round function is pseudorandom (Luby
// and Rackoff 1988); the mixing function here is weaker than that, so there are more. The number is even, so that halves
// of different widths are back in place at the end.
const rounds = 8

// permutation is a keyed bijection of 0..size-1: the order of one epoch, in constant memory. It permutes the numbers of
// just enough bits by a Feistel network and follows the cycle until it is below size again (Black and Rogaway 2002, section
// 3), fewer than 2 steps on average, since at least half of those numbers are below size.
type permutation struct {
	size      uint64
	low, high uint // bits of the two halves
	keys      [rounds]uint64
}

// newPermutation returns the order of an epoch of a seed over size windows, at least 1.
func newPermutation(seed, epoch, size uint64) permutation {
	width := uint(max(bits.Len64(size-1), 2))
	p := permutation{size: size, low: width / 2, high: width - width/2}
	key := mix(seed) ^ mix(^epoch)
	for i := range p.keys {
		key += golden
		p.keys[i] = mix(key)
	}
	return p
}

func (p *permutation) at(i uint64) uint64 {
	for {
		i = p.round(i)
		if i < p.size {
			return i
		}
	}
}

func (p *permutation) round(x uint64) uint64 {
	low, high := p.low, p.high
	for _, key := range p.keys {
		left, right := x>>low, x&(1<<low-1) // high and low bits
		left ^= mix(right^key) & (1<<high - 1)
		x = right<<high | left // the halves change places, and widths
		low, high = high, low
	}
	return x
}

// golden is 2^64 over the golden ratio, the increment of SplitMix64.
const golden = 0x9e3779b97f4a7c15

// mix is the finalizer of SplitMix64 (Steele, Lea and Flood 2014, figure 16): every bit of x moves about half of the result.
func mix(x uint64) uint64 {
	x += golden
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

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

func (s *shuffled) fill(b Batch, j int, i uint64, of visit) error {
	return s.of.fill(b, j, s.order.at(s.from+i), of)
}

// split holds a share of the samples out, at least one. Which ones, their number alone tells: not names, nor the seed.
func (o *opener) split(all samples) (train, held samples, err error) {
	n := all.count()
	if n < 2 {
		key, holds := "data.files", "the files hold"
		if o.Task == Samples {
			key, holds = "data.samples", "the program has"
		}
		return nil, nil, &Error{Key: key, Err: fmt.Errorf("%s %d sample, too few to train on some and hold out others", holds, n)}
	}
	out := min(max(uint64(math.Round(o.Holdout*float64(n))), 1), n-1)
	order := newPermutation(splitKey, 0, n)
	return &shuffled{of: all, order: order, from: out, n: n - out}, &shuffled{of: all, order: order, n: out}, nil
}
