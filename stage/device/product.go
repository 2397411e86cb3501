package device

// MatMul describes C (M,N) = [C +] op(A) (M,K) op(B) (K,N) [+ bias (N)].
type MatMul struct {
	M, N, K    int
	TransA     bool // A is stored (K,M)
	TransB     bool // B is stored (N,K)
	Accumulate bool // add to C instead of overwriting it; excludes Bias
	Bias       Mem  // optional: (N)
}

// Products multiplies matrices and sums them up.
type Products interface {
	// MatMul computes C as m describes. C must not overlap A or B.
	MatMul(c, a, b Mem, m MatMul)
	// SumRows sets sum (C) += the sum over rows of x (R,C).
	SumRows(sum, x Mem, rows, columns int)
}
