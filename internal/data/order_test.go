package data

import (
	"math/bits"
	"testing"
)

// TestEveryOrderIsABijection visits each window exactly once for all small sizes, and for sizes around powers of two,
// where the domain of the network changes.
func TestEveryOrderIsABijection(t *testing.T) {
	sizes := []uint64{1023, 1024, 1025, 4095, 4096, 4097, 65535, 65536, 65537, 100003}
	for n := uint64(1); n <= 300; n++ {
		sizes = append(sizes, n)
	}
	for _, n := range sizes {
		for epoch := range uint64(3) {
			p := newPermutation(7, epoch, n)
			seen := make([]bool, n)
			for i := range n {
				w := p.at(i)
				if w >= n || seen[w] {
					t.Fatalf("size %d, epoch %d: window %d at place %d is out of range or was there before", n, epoch, w, i)
				}
				seen[w] = true
			}
		}
	}
}

// TestTheNetworkIsABijectionOnLargeDomains undoes it: a size whose windows cannot be counted one by one.
func TestTheNetworkIsABijectionOnLargeDomains(t *testing.T) {
	for _, n := range []uint64{1 << 33, 1<<40 + 1, 1 << 63, 1<<64 - 1} {
		p := newPermutation(3, 9, n)
		for i := range uint64(1000) {
			x := mix(i) % n
			if back := p.undo(p.round(x)); back != x {
				t.Fatalf("size %d: %d comes back as %d", n, x, back)
			}
			if y := p.at(x); y >= n {
				t.Fatalf("size %d: %d goes to %d", n, x, y)
			}
		}
	}
}

// undo runs the network backwards.
func (p *permutation) undo(x uint64) uint64 {
	low, high := p.low, p.high // after an even number of rounds
	for i := rounds - 1; i >= 0; i-- {
		low, high = high, low // widths before this round
		right, left := x>>high, x&(1<<high-1)
		left ^= mix(right^p.keys[i]) & (1<<high - 1)
		x = left<<low | right
	}
	return x
}

// TestOrdersDiffer: neighbours of an epoch's order are as far apart as those of a random one, and few windows keep their
// place from one epoch or seed to the next.
func TestOrdersDiffer(t *testing.T) {
	const n = 10_000
	base := newPermutation(1, 0, n)
	for name, p := range map[string]permutation{
		"the next epoch": newPermutation(1, 1, n), "another seed": newPermutation(2, 0, n), "no order": {},
	} {
		same, distance := 0, 0.0
		for i := range uint64(n - 1) {
			if name == "no order" {
				distance += float64(diff(base.at(i), base.at(i+1)))
				if base.at(i) == i {
					same++
				}
				continue
			}
			distance += float64(diff(p.at(i), p.at(i+1)))
			if p.at(i) == base.at(i) {
				same++
			}
		}
		if same > 10 { // 1 is expected; 11 or more has a chance of about 1e-8
			t.Errorf("%d of %d windows are at the same place as in %s", same, n, name)
		}
		if mean := distance / (n - 1); mean < 0.32*n || mean > 0.35*n { // n/3 for a random order
			t.Errorf("%s: neighbours are %.0f windows apart in the mean, want about %d", name, mean, n/3)
		}
	}
}

func diff(a, b uint64) uint64 { return max(a, b) - min(a, b) }

// TestTheDomainIsTight: at least half the network's numbers are windows, so that following a cycle is short.
func TestTheDomainIsTight(t *testing.T) {
	for n := uint64(3); n < 5000; n++ {
		p := newPermutation(0, 0, n)
		if width := p.low + p.high; width != uint(bits.Len64(n-1)) || p.high-p.low > 1 {
			t.Fatalf("size %d: halves of %d and %d bits", n, p.low, p.high)
		}
	}
}
