package stage

import (
	"slices"

	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/model"
)

// MaxCountedClasses is the most classes for which a Score counts each one. Beyond it only the sum over them is known.
const MaxCountedClasses = 1000

// Score is what an evaluation counted. The scores of several micro-batches, or of several parts of the data, add up.
type Score struct {
	Loss    float64 // the sum of the losses, in nats
	Targets int     // those that are not ignored
	// Correct is how many targets had the largest logit. It is counted when Predicted is.
	Correct int
	// Predicted is how many targets were compared with the largest logit: all of them, or none for a language model, whose
	// measure is the loss and whose vocabulary is long.
	Predicted int
	// Classes counts each class of a classifier with at most MaxCountedClasses of them; else nil.
	Classes []ClassCount
}

// ClassCount counts one class: what F1 and a table of errors are made of.
type ClassCount struct {
	Targets   int `json:"targets"`   // targets of the class
	Predicted int `json:"predicted"` // predictions of it
	Correct   int `json:"correct"`   // both
}

// MeanLoss is the loss in nats per target; 0 without targets.
func (s *Score) MeanLoss() float64 { return s.Loss / float64(max(s.Targets, 1)) }

// Add adds another score of the same model.
func (s *Score) Add(o Score) {
	s.Loss += o.Loss
	s.Targets += o.Targets
	s.Correct += o.Correct
	s.Predicted += o.Predicted
	if s.Classes == nil {
		s.Classes = slices.Clone(o.Classes)
		return
	}
	for i, c := range o.Classes {
		s.Classes[i].Targets += c.Targets
		s.Classes[i].Predicted += c.Predicted
		s.Classes[i].Correct += c.Correct
	}
}

// score adds up the losses of a micro-batch and compares its predictions with the targets.
func (c *Computed) score(s *Score, logits device.Mem, labels []byte) {
	loss := c.config.Model.Loss
	targets := c.enter(c.staged.targets, OnHost(labels), targetPort)
	loss.Compute(c.dev, c.losses, device.Mem{}, logits, targets, 0)
	s.Loss += c.total(c.losses)
	task := c.config.Model.Task
	if task == model.Language {
		return
	}
	classes := loss.Classes
	if (task == model.Classification || task == model.Images) && classes <= MaxCountedClasses {
		s.Classes = make([]ClassCount, classes)
	}
	row := make([]float32, classes)
	for i, target := range device.Values[int32](labels) {
		if target >= 0 {
			_ = device.Read(c.dev, device.FloatBytes(row), logits.Slice(i*classes, classes)) // Evaluate returns what failed
			s.count(target, largest(row))
		}
	}
}

// lossOf is the sum of the losses of so many targets: of each, or their mean.
func (c *Computed) lossOf(targets int) float64 {
	if c.config.Model.Loss.Samples {
		return float64(targets) * c.total(c.losses.Slice(0, 1))
	}
	return c.total(c.losses)
}

// total is the sum of losses. What failed is kept for Synchronize.
func (c *Computed) total(losses device.Mem) (sum float64) {
	values := c.hostLosses[:losses.Len()]
	_ = device.Read(c.dev, device.FloatBytes(values), losses)
	for _, l := range values {
		sum += float64(l)
	}
	return sum
}

// count counts one prediction.
func (s *Score) count(target, predicted int32) {
	correct := 0
	if target == predicted {
		correct = 1
	}
	s.Predicted++
	s.Correct += correct
	if s.Classes != nil {
		s.Classes[target].Targets++
		s.Classes[predicted].Predicted++
		s.Classes[target].Correct += correct
	}
}

// largest is the index of the largest value, the first of several.
func largest(values []float32) int32 {
	at := 0
	for i, v := range values {
		if v > values[at] {
			at = i
		}
	}
	return int32(at)
}
