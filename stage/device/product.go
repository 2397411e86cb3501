package device

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

// Rows is R.
func (o *SumRows) Rows() int { return o.X.n / max(o.Sum.n, 1) }

func (o *MatMul) check(c checks) {
	c.positive(&o.M, &o.N, &o.K)
	c.floating(o.M*o.N, &o.C)
	c.floating(o.M*o.K, &o.A)
	c.floating(o.K*o.N, &o.B)
	c.optional(F32, o.N, &o.Bias)
	if o.Accumulate {
		if c.need(F32, o.M*o.N, &o.C); !o.Bias.Absent() {
			c.fail("Bias with Accumulate; add the bias in the product that overwrites C")
		}
	}
}

func (o *SumRows) check(c checks) {
	c.need(F32, o.Sum.n, &o.Sum)
	c.floating(o.Rows()*o.Sum.n, &o.X)
}
