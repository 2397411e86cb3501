package device

// CrossEntropy reads Logits (R,V) and Targets (R), writes each row's loss to Losses (R), in nats, and, unless DLogits is absent, DLogits
// (R,V) = Scale * (softmax - target distribution); DLogits may be Logits. The distribution has 1 - Smoothing at the target and Smoothing
// spread evenly over all V (Szegedy et al. 2016, section 7); 0 <= Smoothing < 1. A target of -1 is ignored: loss 0, gradient 0. A logit
// that is not finite gives a loss that is not finite.
type CrossEntropy struct {
	Losses, DLogits, Logits, Targets Mem
	Scale, Smoothing                 float32
	By                               Factor // of Scale, in a program
}

// Size is R and V.
func (o *CrossEntropy) Size() (rows, vocabulary int) {
	return o.Losses.n, o.Logits.n / max(o.Losses.n, 1)
}

// Check implements Op.
func (o *CrossEntropy) Check() {
	const op = "CrossEntropy"
	rows, vocabulary := o.Size()
	need(op, "losses", o.Losses, F32, rows)
	need(op, "logits", o.Logits, F32, rows*vocabulary)
	needOptional(op, "dlogits", o.DLogits, rows*vocabulary)
	need(op, "targets", o.Targets, I32, rows)
}
