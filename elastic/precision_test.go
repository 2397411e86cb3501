package elastic

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// TestPrecisionsRoundWithinTheirBounds: f32 not at all, bf16 by half of a unit in the last of 8 bits, int8 by half of a 127th of the largest of a block; and what is rounded once stays.
func TestPrecisionsRoundWithinTheirBounds(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 6))
	for _, p := range precisions {
		for _, n := range []int{1, 255, 256, 257, 1000} {
			from := make([]float32, n)
			for i := range from {
				from[i] = float32(random.NormFloat64() * math.Pow(10, float64(i%7-3)))
			}
			from[0] = 0
			encoded, got := make([]byte, p.Bytes(n)), make([]float32, n)
			p.Encode(encoded, from)
			p.Decode(got, encoded)
			for i, v := range from {
				bound := 0.0
				switch p {
				case Float32:
				case BFloat16:
					bound = math.Abs(float64(v)) / 256
				case Int8:
					largest := slices.MaxFunc(from[i/block*block:min(n, i/block*block+block)], func(a, b float32) int { return int(math.Copysign(1, math.Abs(float64(a))-math.Abs(float64(b)))) })
					bound = math.Abs(float64(largest)) / 127 / 2 * 1.00001
				}
				if e := math.Abs(float64(got[i]) - float64(v)); e > bound {
					t.Errorf("%s, element %d of %d: %g became %g, want within %g", p, i, n, v, got[i], bound)
				}
			}
			again := slices.Clone(got)
			p.Round(encoded, again, make([]float32, n))
			if p != Int8 && !slices.Equal(again, got) {
				t.Errorf("%s: what was rounded changed when it was rounded again", p)
			}
		}
	}
}

// TestErrorFeedbackLosesNothing: the sum of the rounded messages and the residual is that of the messages, step after step.
func TestErrorFeedbackLosesNothing(t *testing.T) {
	random := rand.New(rand.NewPCG(7, 8))
	const n = 600
	residual, sent, made := make([]float32, n), make([]float64, n), make([]float64, n)
	encoded := make([]byte, Int8.Bytes(n))
	for range 100 {
		message := make([]float32, n)
		for i := range message {
			message[i] = float32(random.NormFloat64())
			made[i] += float64(message[i])
		}
		Int8.Round(encoded, message, residual)
		for i, v := range message {
			sent[i] += float64(v)
		}
	}
	for i := range sent {
		if lost := math.Abs(made[i] - sent[i] - float64(residual[i])); lost > 1e-4 || math.Abs(float64(residual[i])) > 0.1 {
			t.Fatalf("element %d: %g was made, %g sent, %g is left", i, made[i], sent[i], residual[i])
		}
	}
}

// TestPrecisionsKeepWhatIsNotFinite, so that a training that has failed says so wherever its gradient went.
func TestPrecisionsKeepWhatIsNotFinite(t *testing.T) {
	for _, bad := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
		for _, p := range precisions {
			message := []float32{1, float32(bad), 2}
			p.Round(make([]byte, p.Bytes(3)), message, make([]float32, 3))
			if v := float64(message[1]); !math.IsNaN(v) && !math.IsInf(v, 0) {
				t.Errorf("%s: %v became %v", p, bad, v)
			}
		}
	}
}
