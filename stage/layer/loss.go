package layer

import "github.com/avgpipe/avgpipe/stage/device"

// Loss turns the output of a model's last layer into one loss per target and its gradient.
type Loss interface {
	// Targets is the number of int32 targets of a micro-batch of size s.
	Targets(s Size) int
	// Classes is the number of values a target can take: 0..Classes-1, or -1 to be ignored.
	Classes() int
	// Compute writes each target's loss to losses and, unless doutput is absent, scale times the gradient of their sum to
	// doutput, which may be output.
	Compute(d device.Device, s Size, losses, doutput, output, targets device.Mem, scale float32)
}

// CrossEntropy is the softmax cross-entropy of logits (R,V) against targets (R), in nats.
type CrossEntropy struct{ Vocabulary int }

// Targets implements Loss: one per row.
func (l CrossEntropy) Targets(s Size) int { return s.Rows() }

// Classes implements Loss.
func (l CrossEntropy) Classes() int { return l.Vocabulary }

// Compute implements Loss: forward and backward in one pass over the logits.
func (l CrossEntropy) Compute(d device.Device, s Size, losses, doutput, output, targets device.Mem, scale float32) {
	d.Do(&device.CrossEntropy{Losses: losses, DLogits: doutput, Logits: output, Targets: targets, Scale: scale})
}

// SampleCrossEntropy is CrossEntropy of logits (B,Number) for samples as wholes, whatever their positions.
type SampleCrossEntropy struct{ Number int }

// Targets implements Loss: one per sample.
func (l SampleCrossEntropy) Targets(s Size) int { return s.B }

// Classes implements Loss.
func (l SampleCrossEntropy) Classes() int { return l.Number }

// Compute implements Loss.
func (l SampleCrossEntropy) Compute(d device.Device, s Size, losses, doutput, output, targets device.Mem, scale float32) {
	d.Do(&device.CrossEntropy{Losses: losses, DLogits: doutput, Logits: output, Targets: targets, Scale: scale})
}
