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

func (o *CrossEntropy) check(c checks) {
	rows, vocabulary := o.Size()
	c.need(F32, rows, &o.Losses)
	c.need(F32, rows*vocabulary, &o.Logits)
	c.optional(F32, rows*vocabulary, &o.DLogits)
	c.need(I32, rows, &o.Targets)
}
