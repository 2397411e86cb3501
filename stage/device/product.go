package device

import "fmt"

// Product describes C (M,N) = [C +] op(A) (M,K) op(B) (K,N) [+ Bias (N)].
type Product struct {
	M, N, K    int
	TransA     bool // A is stored (K,M)
	TransB     bool // B is stored (N,K)
	Accumulate bool // add to C instead of overwriting it; excludes Bias
	Bias       Mem  // optional: (N)
}

type (
	// MatMul computes C as the product describes. C must not overlap A or B. Each of A, B and C is F32 or BF16 (C only without
	// Accumulate); the bias is F32. Products are exact and their sums F32, whatever the operands are.
	MatMul struct {
		C, A, B Mem
		Product
	}
	// SumRows adds the sum over the rows of X (R,C), F32 or BF16, to Sum (C): taken in float64, but for groups of a few rows, and rounded
	// once, so that it is within the tolerance whatever R is.
	SumRows struct{ Sum, X Mem }
)

// Check implements Op.
func (o *MatMul) Check() {
	const op = "MatMul"
	if o.M < 1 || o.N < 1 || o.K < 1 {
		panic(fmt.Sprintf("device: %s: dimensions M=%d N=%d K=%d, expected all positive", op, o.M, o.N, o.K))
	}
	needFloating(op, "c", o.C, o.M*o.N)
	needFloating(op, "a", o.A, o.M*o.K)
	needFloating(op, "b", o.B, o.K*o.N)
	if o.Accumulate {
		need(op, "c", o.C, F32, o.M*o.N)
	}
	needOptional(op, "bias", o.Bias, o.N)
	if o.Accumulate && !o.Bias.Absent() {
		panic("device: MatMul: Bias with Accumulate; add the bias in the product that overwrites C")
	}
}

// Rows is R.
func (o *SumRows) Rows() int { return o.X.n / max(o.Sum.n, 1) }

// Check implements Op.
func (o *SumRows) Check() {
	const op = "SumRows"
	needF32(op, o.Sum.n, o.Sum)
	needFloating(op, "x", o.X, o.Rows()*o.Sum.n)
}
