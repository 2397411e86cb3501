package generate

import (
	"math"
	"math/rand/v2"
	"testing"
)

func TestSamplerDrawsFromTheSoftmax(t *testing.T) {
	logits := []float32{2, -1, 1, 2} // equal logits at both ends
	for _, c := range []struct {
		temperature float64
		keep        int
	}{{1, 4}, {0.5, 4}, {2, 3}, {1, 1}} {
		s := sampler{temperature: c.temperature, keep: c.keep, rng: rand.New(rand.NewPCG(1, 2))}
		const draws = 20000
		var counts [4]float64
		for range draws {
			token, err := s.token(logits)
			if err != nil {
				t.Fatal(err)
			}
			counts[token]++
		}
		order := []int{0, 3, 2, 1}[:c.keep]
		sum := 0.0
		for _, id := range order {
			sum += math.Exp(float64(logits[id]) / c.temperature)
		}
		var want [4]float64
		for _, id := range order {
			want[id] = math.Exp(float64(logits[id])/c.temperature) / sum
		}
		for id, p := range want {
			// Six standard deviations of a binomial share; exact where the probability is 0 or 1.
			if got := counts[id] / draws; math.Abs(got-p) > 6*math.Sqrt(p*(1-p)/draws) {
				t.Errorf("temperature %v, top %d: token %d in a share of %v, want %v", c.temperature, c.keep, id, got, p)
			}
		}
	}
}
