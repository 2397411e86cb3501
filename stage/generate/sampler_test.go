package generate

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

func TestSamplerDrawsFromTheSoftmax(t *testing.T) {
	logits := []float32{2, -1, 1, 2} // equal logits at both ends
	for _, c := range []struct {
		temperature float64
		topK        int
		topP        float64
		order       []int // the tokens that are drawn
	}{
		{1, 4, 0, []int{0, 3, 2, 1}},
		{0.5, 0, 1, []int{0, 3, 2, 1}},
		{2, 3, 0, []int{0, 3, 2}},
		{1, 1, 0, []int{0}},
		{1, 0, 0.41, []int{0}},           // the probabilities are 0.4136, 0.4136, 0.1522 and 0.0206
		{1, 0, 0.42, []int{0, 3}},        // the fewest that reach it
		{1, 0, 0.9, []int{0, 3, 2}},      //
		{1, 3, 0.83, []int{0, 3}},        // of the first three 0.4223, 0.4223 and 0.1554
		{1, 9, 0.999, []int{0, 3, 2, 1}}, //
		{100, 2, 0.99, []int{0, 3}},
	} {
		s := sampler{temperature: c.temperature, topK: c.topK, topP: c.topP, rng: rand.New(rand.NewPCG(1, 2))}
		const draws = 20000
		var counts [4]float64
		for range draws {
			token, err := s.token(logits)
			if err != nil {
				t.Fatal(err)
			}
			counts[token]++
		}
		sum := 0.0
		for _, id := range c.order {
			sum += math.Exp(float64(logits[id]) / c.temperature)
		}
		var want [4]float64
		for _, id := range c.order {
			want[id] = math.Exp(float64(logits[id])/c.temperature) / sum
		}
		for id, p := range want {
			// Six standard deviations of a binomial share; exact where the probability is 0 or 1.
			if got := counts[id] / draws; math.Abs(got-p) > 6*math.Sqrt(p*(1-p)/draws) {
				t.Errorf("temperature %v, top %d, top-p %v: token %d in a share of %v, want %v", c.temperature, c.topK, c.topP, id, got, p)
			}
		}
	}
}

// The likeliest tokens of a long vocabulary are those that a sort finds, in its order.
func TestTheLikeliestAreThoseOfASort(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 6))
	logits := make([]float32, 3000)
	for i := range logits {
		logits[i] = float32(random.IntN(900)) / 100 // with many equal ones
	}
	order, total := make([]int32, len(logits)), 0.0
	for i := range order {
		order[i] = int32(i)
		total += math.Exp(float64(logits[i]) - 9)
	}
	slices.SortStableFunc(order, func(a, b int32) int {
		if logits[a] == logits[b] {
			return 0
		}
		return int(math.Copysign(1, float64(logits[b]-logits[a])))
	})
	for _, n := range []int{1, 2, 63, 64, 1000, 2999} {
		s := sampler{temperature: 1, topK: n}
		if s.restrict(logits, 9); !slices.Equal(s.ids, order[:n]) {
			t.Errorf("the %d likeliest are others than those of a sort", n)
		}
	}
	for _, p := range []float64{0.001, 0.3, 0.9, 0.9999} {
		s, share, want := sampler{temperature: 1, topP: p}, 0.0, 0
		for share < p*total {
			share += math.Exp(float64(logits[order[want]]) - 9)
			want++
		}
		sum := s.restrict(logits, 9)
		if !slices.Equal(s.ids[:len(s.weights)], order[:want]) || math.Abs(sum-share) > 1e-9*share {
			t.Errorf("top-p %v keeps %d tokens of weight %v, want %d of %v", p, len(s.weights), sum, want, share)
		}
	}
}
