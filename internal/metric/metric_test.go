package metric

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"
)

func near(t *testing.T, what string, got, want float64) {
	t.Helper()
	if math.Abs(got-want) > 1e-12*math.Max(1, math.Abs(want)) {
		t.Errorf("%s is %.15g, want %.15g", what, got, want)
	}
}

func TestPerplexity(t *testing.T) {
	near(t, "of log 8", Perplexity(math.Log(8)), 8)
	near(t, "of 0", Perplexity(0), 1)
	if !math.IsInf(Perplexity(math.NaN()), 1) || !math.IsInf(Perplexity(math.Inf(1)), 1) {
		t.Error("of no finite loss it is finite")
	}
}

// TestF1OfCounts: 3 true positives, 1 false positive, 2 false negatives: precision 3/4, recall 3/5.
func TestF1OfCounts(t *testing.T) {
	near(t, "F1", F1(5, 4, 3), 2*(3./4)*(3./5)/(3./4+3./5))
	near(t, "F1 of a class that is never right", F1(5, 4, 0), 0)
	near(t, "F1 of a class that does not occur", F1(0, 0, 0), 0)
}

func add(b *BLEU, translation, reference string) {
	b.Add(strings.Fields(translation), strings.Fields(reference))
}

// TestModifiedPrecisionOfThePaper: "the" seven times matches twice (Papineni et al. 2002, example 2; its second reference left out).
func TestModifiedPrecisionOfThePaper(t *testing.T) {
	var b BLEU
	add(&b, "the the the the the the the", "the cat is on the mat")
	if b.matched[0] != 2 || b.total[0] != 7 || b.matched[1] != 0 || b.total[1] != 6 {
		t.Errorf("%+v", b)
	}
	if b.Score(false) != 0 {
		t.Error("no bigram matches, and the score is not 0")
	}
}

// TestBLEUByHand: two sentences.
//
//	the cat sat on the mat   / the cat sat on a mat   1-grams 5/6, 2-grams 3/5, 3-grams 2/4, 4-grams 1/3
//	it is here               / it is over here now    1-grams 3/3, 2-grams 1/2, 3-grams 0/1, none of 4
//
// Together 8/9, 4/7, 2/5, 1/3; 9 words for 11.
func TestBLEUByHand(t *testing.T) {
	var b BLEU
	add(&b, "the cat sat on the mat", "the cat sat on a mat")
	add(&b, "it is here", "it is over here now")
	want := 100 * math.Exp(1-11./9) * math.Pow(8./9*4./7*2./5*1./3, 1./4)
	near(t, "score", b.Score(false), want)
	near(t, "smoothed score, where everything matches", b.Score(true), want)
}

// TestSmoothing: 3-grams 0/2 count as 1/(2*2), 4-grams 0/1 as 1/(4*1).
func TestSmoothing(t *testing.T) {
	var b BLEU
	add(&b, "a b x d", "a b c d")
	near(t, "score", b.Score(true), 100*math.Pow(3./4*1./3*1./4*1./4, 1./4))
	var short BLEU
	add(&short, "a b", "a b") // no 3-grams: the mean of two
	near(t, "of two words", short.Score(true), 100)
	if short.Score(false) != 0 {
		t.Error("without smoothing two words have a score")
	}
	var none, empty BLEU
	add(&none, "x y", "a b")
	if none.Score(true) != 0 || empty.Score(true) != 0 || empty.Score(false) != 0 {
		t.Error("of nothing in common there is a score")
	}
}

// TestAPerfectTranslationHas100, and one of chance something between.
func TestAPerfectTranslationHas100(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	words := func() []string {
		out := make([]string, 5+random.IntN(10))
		for i := range out {
			out[i] = string(rune('a' + random.IntN(4)))
		}
		return out
	}
	var whole, perfect BLEU
	for range 60 {
		x, y := words(), words()
		whole.Add(x, y)
		perfect.Add(x, x)
	}
	near(t, "of the references themselves", perfect.Score(false), 100)
	if s := whole.Score(false); s <= 0 || s >= 100 {
		t.Errorf("of chance %v", s)
	}
}

func TestWords(t *testing.T) {
	for text, want := range map[string]string{
		"Hello, world!":            "Hello | , | world | !",
		"3.14 and 1,024, no.":      "3.14 | and | 1,024 | , | no | .",
		"Größe  naïve\tcafe\u0301": "Größe | naïve | cafe\u0301",
		"it's (a) \"test\"":        "it | ' | s | ( | a | ) | \" | test | \"",
		"":                         "",
		" \n ":                     "",
	} {
		if got := strings.Join(Words(text), " | "); got != want {
			t.Errorf("%q: %s, want %s", text, got, want)
		}
	}
}
