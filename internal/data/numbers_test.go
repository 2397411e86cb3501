package data

import (
	"math"
	"slices"
	"strings"
	"testing"
)

// TestNumbersOfSamplesHaveTheirEpoch: an epoch has each sample that is trained on once, those of the next are as many numbers on, and evaluations have the others.
func TestNumbersOfSamplesHaveTheirEpoch(t *testing.T) {
	for _, c := range []struct {
		counts  Counts
		holdout float64
		held    int
	}{{Counts{Train: 20, HeldOut: 3}, 0, 3}, {Counts{Train: 20}, 0.2, 4}} {
		set, err := Open(t.Context(), Config{Task: Samples, Counts: c.counts, Holdout: c.holdout, Seed: 7})
		if err != nil {
			t.Fatal(err)
		}
		all := c.counts.Train + c.counts.HeldOut
		held := everything(t, set)
		if len(held.Tokens) != c.held || !slices.Equal(held.Tokens, held.Targets) || set.Identity.Digest == "" {
			t.Fatalf("%+v: held out are %v, with targets %v", c.counts, held.Tokens, held.Targets)
		}
		for epoch := range 3 {
			n := int(set.Samples())
			b := batch(set, n)
			if err := set.Fill(Cursor{Pipelines: 1, Batch: n, Step: uint64(epoch)}, 0, n, b); err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(b.Tokens, b.Targets) || slices.IsSorted(b.Tokens) {
				t.Errorf("%+v: epoch %d is %v, with targets %v", c.counts, epoch, b.Tokens, b.Targets)
			}
			seen := slices.Clone(held.Tokens)
			for _, number := range b.Tokens {
				seen = append(seen, number-int32(epoch*all))
			}
			slices.Sort(seen)
			for i, number := range seen {
				if int(number) != i {
					t.Fatalf("%+v: epoch %d and what is held out have the samples %v", c.counts, epoch, seen)
				}
			}
		}
	}
}

// TestNumbersOfSamplesStayWithin32Bits: after as many epochs as there is room for they begin anew.
func TestNumbersOfSamplesStayWithin32Bits(t *testing.T) {
	n := numbers{n: 1 << 20, all: 1 << 20}
	b := Batch{Tokens: make([]int32, 1)}
	for epoch, want := range map[uint64]int32{0: 1<<20 - 1, 2046: 2047<<20 - 1, 2047: 1<<20 - 1} {
		if err := n.fill(b, 0, 1<<20-1, visit{epoch: epoch}); err != nil || b.Tokens[0] != want {
			t.Errorf("epoch %d: number %d, expected %d: %v", epoch, b.Tokens[0], want, err)
		}
	}
	for _, c := range []Counts{{}, {Train: -1}, {Train: 1, HeldOut: math.MaxInt32}, {Train: 5, HeldOut: -1}} {
		if _, err := Open(t.Context(), Config{Task: Samples, Counts: c}); err == nil || !strings.Contains(err.Error(), "expected 1 to 2147483647") {
			t.Errorf("%+v: %v", c, err)
		}
	}
}
