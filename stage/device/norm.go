package device

// Operations that normalise the rows of x (R,C), R elements in Rstd and C in Weight. Without Mean and Bias they are those of the root mean
// square (Zhang and Sennrich 2019, equation 4).
type (
	// Norm sets Y (R,C), F32 or BF16, to (X - Mean) * Rstd * Weight + Bias per row and stores Mean (R) and Rstd (R) =
	// 1/sqrt(variance + Epsilon); without Mean to X * Rstd * Weight, with Rstd = 1/sqrt(mean(X^2) + Epsilon).
	Norm struct {
		Y, Mean, Rstd, X, Weight, Bias Mem
		Epsilon                        float32
	}
	// NormBackward sets DX (R,C) from DY, F32 or BF16, and adds Plus (R,C) to it where that is not absent: the gradient that reaches x
	// past the norm. DX may be DY, not X or Plus. See NormBackwardWeight for the other half.
	NormBackward struct{ DX, DY, X, Mean, Rstd, Weight, Plus Mem }
	// NormBackwardWeight sets DWeight (C) += sum DY * xhat and, with a mean, DBias (C) += sum DY. The sums are as accurate as those of
	// SumRows.
	NormBackwardWeight struct{ DWeight, DBias, DY, X, Mean, Rstd Mem }
)

// Size is R and C.
func (o *Norm) Size() (rows, columns int) { return o.Rstd.n, o.Weight.n }

// Size is R and C.
func (o *NormBackward) Size() (rows, columns int) { return o.Rstd.n, o.Weight.n }

// Size is R and C.
func (o *NormBackwardWeight) Size() (rows, columns int) { return o.Rstd.n, o.DWeight.n }

func (o *Norm) check(c checks) {
	rows, columns := o.Size()
	c.normalised(rows, columns, &o.Y, &o.Rstd, &o.Weight, &o.X)
	c.mean(&o.Mean, &o.Bias, rows, columns)
}

func (o *NormBackward) check(c checks) {
	rows, columns := o.Size()
	c.normalised(rows, columns, &o.DY, &o.Rstd, &o.Weight, &o.DX, &o.X)
	c.optional(F32, rows, &o.Mean)
	c.optional(F32, rows*columns, &o.Plus)
}

func (o *NormBackwardWeight) check(c checks) {
	rows, columns := o.Size()
	c.normalised(rows, columns, &o.DY, &o.Rstd, &o.DWeight, &o.X)
	c.mean(&o.Mean, &o.DBias, rows, columns)
}

// normalised checks what all three have.
func (c checks) normalised(rows, columns int, y, rstd, weight *Mem, x ...*Mem) {
	c.floating(rows*columns, y)
	c.need(F32, rows*columns, x...)
	c.need(F32, rows, rstd)
	c.need(F32, columns, weight)
}

// mean checks a mean and a bias: both are there, or neither.
func (c checks) mean(mean, bias *Mem, rows, columns int) {
	if !mean.Absent() || !bias.Absent() {
		c.need(F32, rows, mean)
		c.need(F32, columns, bias)
	}
}
