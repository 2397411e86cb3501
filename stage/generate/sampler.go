package generate

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
)

// sampler draws tokens.
type sampler struct {
	temperature float64
	topK        int     // 0: all
	topP        float64 // 0 or 1: all
	rng         *rand.Rand
	ids         []int32   // scratch: the tokens that may be drawn
	weights     []float64 // scratch: of those
}

func newSampler(c Config) *sampler {
	return &sampler{temperature: c.Temperature, topK: c.TopK, topP: c.TopP, rng: rand.New(rand.NewPCG(c.Seed, 0x67656e6572617465))}
}

// likeliest is the id of the largest logit, the first of several. All must be finite.
func likeliest(logits []float32) (best int, err error) {
	for id, l := range logits {
		if x := float64(l); math.IsNaN(x) || math.IsInf(x, 0) {
			return 0, fmt.Errorf("the logit of id %d is %v: the weights are not those of a model trained with finite losses", id, l)
		}
		if l > logits[best] {
			best = id
		}
	}
	return best, nil
}

// token draws from softmax(logits / temperature), restricted to the topK likeliest tokens, and of those to the fewest whose probabilities sum up
// to topP (Holtzman et al. 2020, section 3.1). Equal logits count in the order of their ids.
func (s *sampler) token(logits []float32) (int32, error) {
	best, err := likeliest(logits)
	if err != nil || s.temperature == 0 {
		return int32(best), err
	}
	at := s.rng.Float64() * s.restrict(logits, float64(logits[best]))
	for i, w := range s.weights {
		if at -= w; at < 0 {
			return s.ids[i], nil
		}
	}
	return int32(best), nil // rounding left a remainder
}

// restrict finds the tokens that may be drawn, and returns the sum of their weights.
func (s *sampler) restrict(logits []float32, highest float64) float64 {
	all := len(logits)
	if s.topK > 0 {
		all = min(all, s.topK)
	}
	sum := s.take(logits, highest, all, all < len(logits))
	if s.topP == 0 || s.topP == 1 {
		return sum
	}
	for n := min(all, 64); ; n = min(all, 8*n) { // as a rule few tokens are enough
		if all == len(logits) {
			s.take(logits, highest, n, true)
		}
		share := 0.0
		for i, w := range s.weights {
			if share += w; share >= s.topP*sum || i == all-1 {
				s.weights = s.weights[:i+1]
				return share
			}
		}
	}
}

// take finds the n likeliest tokens, in order where it matters, and returns the sum of their weights.
func (s *sampler) take(logits []float32, highest float64, n int, ordered bool) (sum float64) {
	s.ids, s.weights = s.ids[:0], s.weights[:0]
	for id := range n {
		s.ids = append(s.ids, int32(id))
	}
	if ordered {
		s.largest(logits)
	}
	for _, id := range s.ids {
		w := math.Exp((float64(logits[id]) - highest) / s.temperature)
		s.weights, sum = append(s.weights, w), sum+w
	}
	return sum
}

// largest replaces the first ids by those of as many of the largest logits, in order. It keeps a heap, whose root is the least likely.
func (s *sampler) largest(logits []float32) {
	likelier := func(a, b int32) int { return cmp.Or(cmp.Compare(logits[b], logits[a]), cmp.Compare(a, b)) }
	heap := s.ids
	slices.SortFunc(heap, func(a, b int32) int { return likelier(b, a) })
	for id := int32(len(heap)); int(id) < len(logits); id++ {
		if logits[id] <= logits[heap[0]] {
			continue
		}
		at := 0
		for {
			next := 2*at + 1
			if next+1 < len(heap) && likelier(heap[next], heap[next+1]) < 0 {
				next++
			}
			if next >= len(heap) || likelier(heap[next], id) < 0 {
				break
			}
			heap[at], at = heap[next], next
		}
		heap[at] = id
	}
	slices.SortFunc(heap, likelier)
}
