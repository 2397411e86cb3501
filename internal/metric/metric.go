// Package metric measures how well a model predicts: perplexity, F1 of a class, and BLEU of translations. It is arithmetic on
// counts, which parts of an evaluation add up to in any order.
package metric

import "math"

// Perplexity is e to the mean loss of a token, which is in nats. Of no finite loss it is infinite.
func Perplexity(loss float64) float64 {
	if math.IsNaN(loss) {
		return math.Inf(1)
	}
	return math.Exp(loss)
}

// F1 is the harmonic mean of precision and recall of one class (van Rijsbergen 1979, chapter 7): of so many samples of the class,
// and so many that were taken for it, so many are both. It is 0 where there are none of either, as in scikit-learn.
func F1(targets, predicted, correct int) float64 {
	return 2 * float64(correct) / float64(max(targets+predicted, 1))
}
