package device

// Norms normalise rows.
type Norms interface {
	// LayerNorm sets y (R,C) = (x - mean) * rstd * weight + bias per row, and stores mean (R) and rstd (R).
	// y is F32 or BF16.
	LayerNorm(y, mean, rstd, x, weight, bias Mem, rows, columns int, epsilon float32)
	// LayerNormBackward sets dx (R,C), and adds plus (R,C) to it where that is not absent: the gradient that reaches x past the
	// norm. dx may be dy, not x or plus. dy is F32 or BF16. See LayerNormBackwardWeight for the other half.
	LayerNormBackward(dx, dy, x, mean, rstd, weight, plus Mem, rows, columns int)
	// LayerNormBackwardWeight sets dweight (C) += sum dy * xhat, dbias (C) += sum dy.
	LayerNormBackwardWeight(dweight, dbias, dy, x, mean, rstd Mem, rows, columns int)
}
