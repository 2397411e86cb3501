package noisescale

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
)

// source makes gradients of samples that are Gaussian about a known one, of as many elements as deviations.
type source struct {
	rng        *rand.Rand
	gradient   []float64
	deviations []float64
}

// newSource has a critical batch of so many samples: the sum of variances over the squared length of the gradient. Elements differ by a factor of ten.
func newSource(seed uint64, elements int, critical float64) *source {
	s := &source{rng: rand.New(rand.NewPCG(seed, 1))}
	square, variance := 0.0, 0.0
	for range elements {
		g, d := s.rng.NormFloat64(), math.Pow(10, s.rng.Float64())
		s.gradient, s.deviations = append(s.gradient, g), append(s.deviations, d)
		square, variance = square+g*g, variance+d*d
	}
	for i := range s.deviations {
		s.deviations[i] *= math.Sqrt(critical * square / variance)
	}
	return s
}

// norms are of a batch, whose first samples are the small one. The mean over n samples has deviations of 1/sqrt(n).
func (s *source) norms(small, big float64) Norms {
	n := Norms{Small: small, Big: big}
	for i, g := range s.gradient {
		first := g + s.deviations[i]/math.Sqrt(small)*s.rng.NormFloat64()
		rest := g + s.deviations[i]/math.Sqrt(big-small)*s.rng.NormFloat64()
		all := (small*first + (big-small)*rest) / big
		n.SmallSquare, n.BigSquare = n.SmallSquare+first*first, n.BigSquare+all*all
	}
	return n
}

// TestTheEstimateIsTheKnownNoiseScale: within 4 of the standard errors that it says, and within 25%, for critical batches from far below the batch to far above it.
func TestTheEstimateIsTheKnownNoiseScale(t *testing.T) {
	for _, critical := range []float64{2, 32, 512} {
		for _, batch := range [][2]float64{{1, 16}, {8, 32}, {16, 32}} {
			s := newSource(3, 8000, critical)
			var m Moments
			for step := range uint64(300) {
				m.Add(s.norms(batch[0], batch[1]), step, 100)
			}
			e, why := m.Estimate()
			if e == nil {
				t.Errorf("critical batch %v, batches %v: not known: %s", critical, batch, why)
				continue
			}
			off := e.Samples/critical - 1
			t.Logf("critical batch %v, batches %v: %.4g, off by %.1f%%, error %.1f%%", critical, batch, e.Samples, 100*off, 100*e.Error)
			if math.Abs(off) > 4*e.Error || math.Abs(off) > 0.25 || e.Step != 299 {
				t.Errorf("critical batch %v, batches %v: %+v", critical, batch, *e)
			}
		}
	}
}

// TestTheErrorIsThatOfManyEstimates: of 200 estimates the spread is what they say of themselves, within a third.
func TestTheErrorIsThatOfManyEstimates(t *testing.T) {
	const critical, trials = 64., 200
	sum, squares, said := 0., 0., 0.
	for trial := range uint64(trials) {
		s := newSource(trial, 300, critical)
		var m Moments
		for step := range uint64(200) {
			m.Add(s.norms(4, 32), step, 50)
		}
		e, why := m.Estimate()
		if e == nil {
			t.Fatal(why)
		}
		off := e.Samples/critical - 1
		sum, squares, said = sum+off, squares+off*off, said+e.Error
	}
	mean, spread := sum/trials, math.Sqrt(squares/trials)
	said /= trials
	t.Logf("off by %.1f%% on average, spread %.1f%%, said %.1f%%", 100*mean, 100*spread, 100*said)
	if ratio := said / spread; ratio < 2./3 || ratio > 3./2 || math.Abs(mean) > 0.05 {
		t.Errorf("the errors said are %v of those found, which are %v on average", ratio, mean)
	}
}

// TestTheEstimateFollowsWhatChanges: noise grows while a loss falls.
func TestTheEstimateFollowsWhatChanges(t *testing.T) {
	var m Moments
	for _, critical := range []float64{10, 40} {
		s := newSource(5, 3000, critical)
		for step := range uint64(300) {
			m.Add(s.norms(4, 32), step, 40)
		}
		if e, why := m.Estimate(); e == nil || math.Abs(e.Samples/critical-1) > 0.2 {
			t.Errorf("critical batch %v: %+v %s", critical, e, why)
		}
	}
}

func TestNothingIsSaidBeforeItIsKnown(t *testing.T) {
	var m Moments
	if e, why := m.Estimate(); e != nil || !strings.Contains(why, "0 of 8 measurements") {
		t.Errorf("of none: %+v, %q", e, why)
	}
	s := newSource(1, 2000, 30)
	for step := range uint64(LeastCount - 1) {
		m.Add(s.norms(4, 32), step, 100)
	}
	if e, why := m.Estimate(); e != nil || !strings.Contains(why, "7 of 8 measurements") {
		t.Errorf("of seven: %+v, %q", e, why)
	}
	before := m
	for _, n := range []Norms{{Small: 4, Big: 4, SmallSquare: 1, BigSquare: 1}, {Small: 0, Big: 4}, {Small: 4, Big: 32, SmallSquare: math.Inf(1), BigSquare: 1}, {Small: 4, Big: 32, SmallSquare: 1, BigSquare: math.NaN()}} {
		if m.Add(n, 99, 100); m != before {
			t.Errorf("%+v was taken", n)
		}
	}
	m.Add(s.norms(4, 32), LeastCount, 100)
	if e, why := m.Estimate(); e == nil {
		t.Errorf("of eight: %q", why)
	}
}

// TestItIsNeverNegative: a gradient that is all noise, one without any, and few elements, by many seeds.
func TestItIsNeverNegative(t *testing.T) {
	known := 0
	for seed := range uint64(100) {
		for _, critical := range []float64{0, 1, 1e9} {
			s := newSource(seed, 3, critical)
			var m Moments
			for step := range uint64(40) {
				m.Add(s.norms(1, 2), step, 20)
				if e, why := m.Estimate(); e != nil {
					known++
					if !(e.Samples > 0) || !(e.Error <= LargestError) || why != "" {
						t.Fatalf("seed %d, critical batch %v: %+v", seed, critical, *e)
					}
				} else if why == "" {
					t.Fatal("not known, and no reason")
				}
			}
		}
	}
	if known == 0 {
		t.Error("no estimate at all")
	}
	all := newSource(1, 1000, 1e7)
	var m Moments
	for step := range uint64(100) {
		m.Add(all.norms(1, 16), step, 50)
	}
	if e, why := m.Estimate(); e != nil || !strings.Contains(why, "far above the batch") {
		t.Errorf("a gradient that is all noise: %+v, %q", e, why)
	}
}

// TestWhatIsKeptGoesOn: moments that were stored and read go on to the same bits.
func TestWhatIsKeptGoesOn(t *testing.T) {
	s := newSource(2, 500, 20)
	var whole Moments
	var norms []Norms
	for range 50 {
		norms = append(norms, s.norms(4, 32))
	}
	for i, n := range norms {
		whole.Add(n, uint64(i), 30)
	}
	var half Moments
	for i, n := range norms {
		if i == 25 {
			text, err := json.Marshal(half)
			if err != nil {
				t.Fatal(err)
			}
			half = Moments{}
			if err := json.Unmarshal(text, &half); err != nil {
				t.Fatal(err)
			}
		}
		half.Add(n, uint64(i), 30)
	}
	if half != whole {
		t.Errorf("%+v, want %+v", half, whole)
	}
}
