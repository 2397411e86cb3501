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

// Check implements Op.
func (o *Norm) Check() {
	const op = "Norm"
	rows, columns := o.Size()
	needFloating(op, "y", o.Y, rows*columns)
	need(op, "x", o.X, F32, rows*columns)
	need(op, "rstd", o.Rstd, F32, rows)
	need(op, "weight", o.Weight, F32, columns)
	if o.Mean.Absent() && o.Bias.Absent() {
		return
	}
	need(op, "mean", o.Mean, F32, rows)
	need(op, "bias", o.Bias, F32, columns)
}

// Check implements Op.
func (o *NormBackward) Check() {
	const op = "NormBackward"
	rows, columns := o.Size()
	need(op, "dx", o.DX, F32, rows*columns)
	needFloating(op, "dy", o.DY, rows*columns)
	need(op, "x", o.X, F32, rows*columns)
	needOptional(op, "mean", o.Mean, rows)
	need(op, "rstd", o.Rstd, F32, rows)
	need(op, "weight", o.Weight, F32, columns)
	needOptional(op, "plus", o.Plus, rows*columns)
}

// Check implements Op.
func (o *NormBackwardWeight) Check() {
	const op = "NormBackwardWeight"
	rows, columns := o.Size()
	need(op, "dweight", o.DWeight, F32, columns)
	needFloating(op, "dy", o.DY, rows*columns)
	need(op, "x", o.X, F32, rows*columns)
	need(op, "rstd", o.Rstd, F32, rows)
	if o.Mean.Absent() && o.DBias.Absent() {
		return
	}
	need(op, "mean", o.Mean, F32, rows)
	need(op, "dbias", o.DBias, F32, columns)
}
