package generate

import (
	"math"
	"slices"
	"testing"
)

// The tokens of a language in which the likeliest first word leads astray.
const (
	end int32 = iota
	likely
	right
	words
)

// next is the probability of each token after others.
func next(tokens []int32) [words]float64 {
	switch {
	case len(tokens) == 0:
		return [words]float64{end: 0.05, likely: 0.55, right: 0.4}
	case slices.Equal(tokens, []int32{right}):
		return [words]float64{end: 0.9, likely: 0.05, right: 0.05}
	case tokens[0] == right:
		return [words]float64{end: 0.98, likely: 0.01, right: 0.01}
	}
	return [words]float64{end: 0.4, likely: 0.3, right: 0.3}
}

// translate runs a search in that language.
func translate(t *testing.T, beam int, alpha float64, positions int) []int32 {
	t.Helper()
	s := search{live: []hypothesis{{}}}
	for range positions {
		var all []candidate
		for k, h := range s.live {
			logits := make([]float32, words)
			for id, p := range next(h.tokens) {
				logits[id] = float32(math.Log(p) + 3) // a softmax takes any constant off
			}
			var err error
			if all, err = s.extend(all, k, logits, beam); err != nil {
				t.Fatal(err)
			}
		}
		s.choose(all, beam, end)
	}
	return s.best(alpha)
}

func TestBeamFindsWhatTheLikeliestNextTokenMisses(t *testing.T) {
	if got := translate(t, 1, 0, 5); !slices.Equal(got, []int32{likely}) {
		t.Errorf("likeliest next token: %v, want [likely], whose probability is 0.22", got)
	}
	if got := translate(t, 2, 0, 5); !slices.Equal(got, []int32{right}) {
		t.Errorf("beam of 2: %v, want [right], whose probability is 0.36", got)
	}
}

func TestLengthPenaltyPrefersLongerTranslations(t *testing.T) {
	s := search{done: []hypothesis{{tokens: []int32{1}, score: -2}, {tokens: []int32{1, 2, 1, 2, 1, 2}, score: -2.5}}}
	for alpha, want := range map[float64]int{0: 1, 0.2: 1, 1: 6} { // 6/7 and 12/6 of the score's length at alpha 1
		if got := s.best(alpha); len(got) != want {
			t.Errorf("alpha %v: %d tokens, want %d", alpha, len(got), want)
		}
	}
}

func TestUnfinishedTranslationsAreGivenOnlyWhereNoneFinished(t *testing.T) {
	if got := translate(t, 3, 0, 1); len(got) != 0 {
		t.Errorf("after one position: %v, want the empty translation, which ended", got)
	}
	s := search{live: []hypothesis{{tokens: []int32{1, 2}, score: -3}, {tokens: []int32{2, 2}, score: -2}}}
	if got := s.best(0.6); !slices.Equal(got, []int32{2, 2}) {
		t.Errorf("none finished: %v, want the likelier beginning", got)
	}
}

func TestSearchRefusesLogitsThatAreNotFinite(t *testing.T) {
	s := search{live: []hypothesis{{}}}
	if _, err := s.extend(nil, 0, []float32{1, float32(math.NaN())}, 1); err == nil {
		t.Error("a NaN went through")
	}
}
