package elastic

import (
	"math"

	"github.com/avgpipe/avgpipe/stage/flat"
)

// leastSquare keeps the divisors of adaptive compensations above 0.
const leastSquare = 1e-7

// compensated is how many elements are in host memory at a time.
const compensated = 1 << 14

// compensate corrects the gradient g of a tensor that has moved by d since (SAPipe, section 3.3; Zheng et al., ICML 2017, for diag). The products of gradients stand for the
// second derivatives of the loss:
//
//	diag   g += lambda g*g*d, element by element      diag_adaptive    g += lambda g*g*d / sqrt(g*g + 1e-7)
//	outer  g += lambda <g,d> g                        outer_adaptive   g += lambda <g,d> g / sqrt(|g|^2 + 1e-7)
//
// Devices have no operation for sums of products, so elements pass through host memory. moved is overwritten.
func compensate(by Compensation, lambda float32, g, moved flat.Vector) {
	switch by {
	case CompensateNothing:
	case CompensateDiag:
		moved.Mul(g)
		moved.Mul(g)
		g.Axpy(lambda, moved)
	case CompensateDiagAdaptive:
		inChunks(g, moved, func(at int, g1, d1 []float32) {
			for i, x := range g1 {
				square := float64(x) * float64(x)
				g1[i] += float32(float64(lambda) * square * float64(d1[i]) / math.Sqrt(square+leastSquare))
			}
			g.Write(g1, at)
		})
	case CompensateOuter, CompensateOuterAdaptive:
		product, square := 0.0, 0.0
		inChunks(g, moved, func(_ int, g1, d1 []float32) {
			for i, x := range g1 {
				product += float64(x) * float64(d1[i])
				square += float64(x) * float64(x)
			}
		})
		if by == CompensateOuterAdaptive {
			product /= math.Sqrt(square + leastSquare)
		}
		g.Scale(float32(1 + float64(lambda)*product))
	}
}

// inChunks reads two vectors of one length into host memory, some elements at a time.
func inChunks(a, b flat.Vector, do func(at int, a, b []float32)) {
	n := min(a.Len(), compensated)
	one, two := make([]float32, n), make([]float32, n)
	for at := 0; at < a.Len(); at += n {
		n := min(n, a.Len()-at)
		a.Read(one[:n], at)
		b.Read(two[:n], at)
		do(at, one[:n], two[:n])
	}
}
