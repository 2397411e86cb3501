// Package metric measures how well a model predicts: accuracy, precision, recall and F1 of classes, perplexity, and BLEU of
// translations. It is arithmetic on counts, which parts of an evaluation add up to in any order.
package metric

import (
	"fmt"
	"math"
)

// Perplexity is e to the mean loss of a token, which is in nats. Of no finite loss it is infinite.
func Perplexity(loss float64) float64 {
	if math.IsNaN(loss) {
		return math.Inf(1)
	}
	return math.Exp(loss)
}

// Confusion counts predictions: how often a sample of a class was taken for which.
type Confusion struct {
	classes int
	counts  []int // of class i taken for j, at i*classes+j
}

// NewConfusion is an empty table for so many classes, at least 1.
func NewConfusion(classes int) *Confusion {
	return &Confusion{classes: classes, counts: make([]int, classes*classes)}
}

// Add counts one sample. It fails when one of them is no class.
func (c *Confusion) Add(class, predicted int) error {
	if class < 0 || class >= c.classes || predicted < 0 || predicted >= c.classes {
		return fmt.Errorf("metric: class %d taken for %d; there are %d classes", class, predicted, c.classes)
	}
	c.counts[class*c.classes+predicted]++
	return nil
}

// Merge adds the counts of another table of as many classes.
func (c *Confusion) Merge(o *Confusion) error {
	if o.classes != c.classes {
		return fmt.Errorf("metric: merge a table of %d classes into one of %d", o.classes, c.classes)
	}
	for i, n := range o.counts {
		c.counts[i] += n
	}
	return nil
}

// Total is the number of samples.
func (c *Confusion) Total() int {
	n := 0
	for _, k := range c.counts {
		n += k
	}
	return n
}

// Accuracy is the share of samples that were taken for what they are; 0 of none.
func (c *Confusion) Accuracy() float64 {
	right := 0
	for i := range c.classes {
		right += c.counts[i*c.classes+i]
	}
	return ratio(right, c.Total())
}

// Score says how well one class, or the mean of them, was recognised. A ratio whose denominator is 0 is 0, as in scikit-learn.
type Score struct {
	Precision float64 // the share of what was taken for the class that is of it
	Recall    float64 // the share of the class that was taken for it
	F1        float64 // the harmonic mean of both
}

// Class is the score of one class: with two classes, that of 1 is the binary score. It panics when there is no such class.
func (c *Confusion) Class(class int) Score {
	right, taken, there := c.counts[class*c.classes+class], 0, 0
	for i := range c.classes {
		taken += c.counts[i*c.classes+class]
		there += c.counts[class*c.classes+i]
	}
	return Score{Precision: ratio(right, taken), Recall: ratio(right, there), F1: ratio(2*right, taken+there)}
}

// Macro is the mean of the scores of all classes that a sample is of, or was taken for, each counting the same.
func (c *Confusion) Macro() Score {
	var sum Score
	n := 0
	for class := range c.classes {
		if !c.occurs(class) {
			continue
		}
		s := c.Class(class)
		n++
		sum.Precision += s.Precision
		sum.Recall += s.Recall
		sum.F1 += s.F1
	}
	if n == 0 {
		return Score{}
	}
	return Score{Precision: sum.Precision / float64(n), Recall: sum.Recall / float64(n), F1: sum.F1 / float64(n)}
}

// occurs reports whether a sample is of a class or was taken for it.
func (c *Confusion) occurs(class int) bool {
	for i := range c.classes {
		if c.counts[class*c.classes+i] > 0 || c.counts[i*c.classes+class] > 0 {
			return true
		}
	}
	return false
}

func ratio(a, b int) float64 {
	if b == 0 {
		return 0
	}
	return float64(a) / float64(b)
}
