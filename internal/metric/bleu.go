package metric

import (
	"math"
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxOrder is the words of the longest n-grams that BLEU counts.
const maxOrder = 4

// BLEU counts the n-grams that translations share with their references (Papineni et al. 2002), one reference for each, over
// a whole corpus: sentences are added, never averaged.
type BLEU struct {
	matched, total       [maxOrder]int // n-grams of the translations: those that the reference has too, and all
	translated, expected int           // words of the translations and of the references
}

// Add counts one translation, in words or any other tokens. An n-gram matches at most as often as the reference has it
// (section 2.1.1 there: modified precision).
func (b *BLEU) Add(translation, reference []string) {
	b.translated += len(translation)
	b.expected += len(reference)
	for n := 1; n <= maxOrder; n++ {
		has := grams(reference, n)
		for gram, count := range grams(translation, n) {
			b.total[n-1] += count
			b.matched[n-1] += min(count, has[gram])
		}
	}
}

// grams counts the runs of n words. Words are joined by a character that text does not have.
func grams(words []string, n int) map[string]int {
	counts := map[string]int{}
	for i := 0; i+n <= len(words); i++ {
		counts[strings.Join(words[i:i+n], "\x00")]++
	}
	return counts
}

// Score is the geometric mean of the precisions of n-grams of 1 to 4 words, times the brevity penalty (section 2.3), from 0
// to 100. Without smoothing it is 0 when no n-gram of one length matches, as the paper has it. With it, such a precision
// is 1 / (2^k * total), k counting the lengths without a match from 1 on: the "exp" smoothing of NIST's mteval-v13a and
// sacreBLEU's default (Chen and Cherry 2014, method 3). Lengths of which the translations have no n-gram at all are left out
// of the mean when smoothing, as sacreBLEU's effective order does, and else make the score 0.
func (b *BLEU) Score(smooth bool) float64 {
	sum, orders, halves := 0.0, 0, 1.0
	for n := range maxOrder {
		switch {
		case b.total[n] == 0 && smooth:
			continue
		case b.matched[n] == 0 && !smooth:
			return 0
		case b.matched[n] == 0:
			halves *= 2
			sum += math.Log(1 / (halves * float64(b.total[n])))
		default:
			sum += math.Log(float64(b.matched[n]) / float64(b.total[n]))
		}
		orders++
	}
	if orders == 0 || b.matched[0] == 0 {
		return 0
	}
	return 100 * b.brevity() * math.Exp(sum/float64(orders))
}

// brevity is 1 for translations as long as the references or longer, and falls with their length.
func (b *BLEU) brevity() float64 {
	if b.translated >= b.expected {
		return 1
	}
	return math.Exp(1 - float64(b.expected)/float64(b.translated))
}

// wordOrCharacter is a run of letters, marks and digits, in which a point or comma stands between digits alone; else any character.
var wordOrCharacter = regexp.MustCompile(strings.NewReplacer("W", `[\pL\pM\pN]`, "D", `\p{Nd}`).Replace(`(?s)W*D(?:[.,]D(?:W*D)?)+W*|W+|.`))

// Words cuts text into what BLEU counts: runs of letters, marks and digits, and every other visible character alone. A point or
// comma between digits stays in the number. This is close to the tokenization 13a of mteval, not the same: scores compare
// with one another, not with published ones.
func Words(text string) []string {
	return slices.DeleteFunc(wordOrCharacter.FindAllString(text, -1), func(word string) bool {
		r, _ := utf8.DecodeRuneInString(word)
		return unicode.IsSpace(r) || unicode.IsControl(r)
	})
}
