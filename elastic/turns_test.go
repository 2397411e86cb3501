package elastic

import (
	"math"
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/stage/flat"
)

// TestOnePipelineVisitsInARound, and in N rounds each once.
func TestOnePipelineVisitsInARound(t *testing.T) {
	for n := 2; n <= 5; n++ {
		needs := newMethodOf(t, "easgd-async", Config{Pipelines: n}).Needs()
		visits := make([]int, n)
		for r := uint64(1); r <= uint64(3*n); r++ { //nolint:gosec // few
			in := 0
			for i := range n {
				if needs.Visits(i, r) {
					in++
					visits[i]++
				}
			}
			if in != 1 {
				t.Errorf("%d pipelines: %d visit in round %d", n, in, r)
			}
		}
		for i, v := range visits {
			if v != 3 {
				t.Errorf("%d pipelines: pipeline %d visits %d times in %d rounds", n, i, v, 3*n)
			}
		}
		if needs.Every() != n || needs.Buffers() != 2 {
			t.Errorf("%d pipelines: every %d, %d buffers", n, needs.Every(), needs.Buffers())
		}
	}
}

// TestVisitsConserveTheSum of all pipelines and the center, but for local updates.
func TestVisitsConserveTheSum(t *testing.T) {
	const tolerance = 1e-5
	s := newShell(t, newMethodOf(t, "easgd-async", Config{Pipelines: 3}), 3, 16)
	sums := func() []float64 {
		all := widen(s.centerCopy())
		for _, x := range s.x {
			for j, v := range x {
				all[j] += float64(v)
			}
		}
		return all
	}
	expected := sums()
	for r := range uint64(50) {
		for i := range 3 {
			u := localUpdate(i, r+1, s.x[i])
			for j, d := range u {
				expected[j] += float64(d)
			}
			s.updateWith(i, u)
		}
		for j, v := range sums() {
			if math.Abs(v-expected[j]) > tolerance {
				t.Fatalf("round %d: element %d of the sum is %v, expected %v", r+1, j, v, expected[j])
			}
		}
	}
}

// TestVisitsAreStableUpToAnAlphaOfOne, whatever the learning rate, and grow beyond: with steps of gradient descent on x^2/2.
func TestVisitsAreStableUpToAnAlphaOfOne(t *testing.T) {
	for _, alpha := range []float64{0.5, 0.99, 1.05} {
		for _, rate := range []float32{1e-4, 0.5, 1.9} {
			c := Config{Alpha: alpha, Pipelines: 2}
			s := newShell(t, newInTurn(c), 2, 4)
			for i, x := range s.x {
				x[0] += float32(i) + 1 // so that they are apart
			}
			first := s.norm()
			for range 400 {
				for i := range 2 {
					u := flat.NewHost(4)
					for j, v := range s.x[i] {
						u[j] = -rate * v
					}
					s.updateWith(i, u)
				}
			}
			grows := s.norm() > 1.01*first
			diverges := alpha > 1 && rate < 1e-3 // larger steps toward 0 make up for it
			if grows != diverges && (alpha <= 1 || diverges) {
				t.Errorf("alpha %v, learning rate %v: the length went from %v to %v", alpha, rate, first, s.norm())
			}
		}
	}
}

// norm is the length of all weights together.
func (s *shell) norm() float64 {
	sum := 0.0
	for _, x := range s.x {
		for _, v := range x {
			sum += float64(v) * float64(v)
		}
	}
	for _, v := range s.centerCopy() {
		sum += float64(v) * float64(v)
	}
	return math.Sqrt(sum)
}

// TestAPipelineThatLeavesHasNoTurn: nothing of an earlier message is applied in its rounds.
func TestAPipelineThatLeavesHasNoTurn(t *testing.T) {
	s := newShell(t, newMethodOf(t, "easgd-async", Config{Pipelines: 3}), 3, 16)
	s.round(ascending(3))
	actions, err := s.center.Leave(2)
	if err != nil {
		t.Fatal(err)
	}
	s.execute(actions)
	before := s.centerCopy()
	s.round(ascending(2)) // round 2, that of pipeline 2
	if err := sameBits(s.centerCopy(), before); err != nil {
		t.Errorf("the center moved: %v", err)
	}
	s.round(ascending(2))
	if err := sameBits(s.centerCopy(), before); err == nil {
		t.Error("the center does not move in the turn of pipeline 0")
	}
}

// TestAlphaInTurn: an Nth of the moving rate by default, and below 1.
func TestAlphaInTurn(t *testing.T) {
	for n, want := range map[int]float64{2: 0.45, 4: 0.225, 9: 0.1} {
		if got := newMethodOf(t, "easgd-async", Config{Pipelines: n}).Config().Alpha; math.Abs(got-want) > 1e-12 {
			t.Errorf("%d pipelines: %v", n, got)
		}
	}
	if _, err := NewMethod("easgd-async", Config{Pipelines: 2, Alpha: 1}); err == nil || !strings.Contains(err.Error(), "averaging.alpha is 1: below 1") {
		t.Errorf("alpha 1: %v", err)
	}
}
