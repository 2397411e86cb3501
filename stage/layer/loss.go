package layer

import "github.com/avgpipe/avgpipe/stage/device"

// Loss turns the output of a model's last layer into one loss per target and its gradient: the softmax cross-entropy of logits against
// targets, in nats.
type Loss struct {
	// Classes is the number of values that a target can take: 0..Classes-1, or -1 to be ignored.
	Classes int
	// PerSample: logits are (B,Classes), one target for a sample as a whole; else (R,Classes), one for each position.
	PerSample bool
	// Smoothing is spread evenly over the classes in training (Szegedy et al. 2016, section 7), in [0,1). Evaluations, whose scale is 0,
	// give the plain loss, so that a perplexity means what it does elsewhere.
	Smoothing float64
	// User says that a user's program computes the loss in training: one number of all logits of a micro-batch. Evaluations give the plain loss.
	User bool
	// Samples says that targets are numbers of the user's samples, one for each sample, or -1 to be ignored: only his program knows what they stand for. Evaluations give his loss too,
	// the mean over the samples that count, as the first of the losses. Classes bounds the numbers.
	Samples bool
}

// targetTensors are the targets in the shape that a user's loss is given them in.
func (l Loss) targetTensors(s Size) []device.ModuleTensor {
	shape := []int{s.B}
	if !l.PerSample {
		shape = append(shape, s.T)
	}
	return []device.ModuleTensor{{Shape: shape, Type: device.I32}}
}

// Targets is the number of int32 targets of a micro-batch of size s.
func (l Loss) Targets(s Size) int {
	if l.PerSample {
		return s.B
	}
	return s.Rows()
}

// Compute writes each target's loss to losses and, unless doutput is absent, scale times the gradient of their sum to doutput, which may
// be output.
func (l Loss) Compute(d device.Device, losses, doutput, output, targets device.Mem, scale float32) {
	o := device.CrossEntropy{Losses: losses, DLogits: doutput, Logits: output, Targets: targets, Scale: scale}
	if scale != 0 {
		o.Smoothing = float32(l.Smoothing)
	}
	d.Do(&o)
}

// emit is Compute in a program, with the run's scale.
func (l Loss) emit(b *Builder, losses, doutput, output, targets device.Mem) {
	o := &device.CrossEntropy{Losses: losses, DLogits: doutput, Logits: output, Targets: targets, Scale: 1, By: device.LossScale}
	if !b.Evaluating {
		o.Smoothing = float32(l.Smoothing)
	}
	b.Do(o)
}
