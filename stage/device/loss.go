package device

// Losses compare outputs with targets.
type Losses interface {
	// CrossEntropy reads logits (R,V) and targets (R), writes each row's loss to losses (R), in nats, and, unless
	// dlogits is absent, dlogits (R,V) = scale * (softmax - onehot); dlogits may be logits. A target of -1 is ignored: loss 0,
	// gradient 0. A logit that is not finite gives a loss that is not finite.
	CrossEntropy(losses, dlogits, logits, targets Mem, rows, vocabulary int, scale float32)
}
