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
	// MatMul computes C as m describes. C must not overlap A or B. Each of A, B and C is F32 or BF16 (C only without
	// Accumulate); the bias is F32. Products are exact and their sums F32, whatever the operands are.
	MatMul(c, a, b Mem, m MatMul)
	// SumRows sets sum (C) += the sum over rows of x (R,C), F32 or BF16.
	SumRows(sum, x Mem, rows, columns int)
}
