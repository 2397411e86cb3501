package ref

import "math"

// ln2 in two parts: the product of the high part with an exponent is exact (Cody and Waite 1980).
const (
	ln2High = 6.93147180369123816490e-01
	ln2Low  = 1.90821492927058770002e-10
	log2e   = 1.44269504088896338700
)

// expTerms are 1/n!, highest first: |r| <= ln(2)/2 leaves a remainder below 1e-17.
var expTerms = [...]float64{
	1.0 / 6227020800, 1.0 / 479001600, 1.0 / 39916800, 1.0 / 3628800, 1.0 / 362880, 1.0 / 40320, 1.0 / 5040, 1.0 / 720,
	1.0 / 120, 1.0 / 24, 1.0 / 6, 1.0 / 2, 1, 1,
}

// exp is e to the x, within a few units in the last place, with the same bits on every processor. math.Exp takes other
// instructions where the processor has them. Results below the normal range are 0.
func exp(x float64) float64 {
	switch {
	case math.IsNaN(x):
		return x
	case x > 709:
		return math.Inf(1)
	case x < -708:
		return 0
	}
	k := math.Floor(float64(x*log2e) + 0.5)
	r := x - float64(k*ln2High)
	r -= float64(k * ln2Low)
	p := expTerms[0]
	for _, term := range expTerms[1:] {
		p = float64(p*r) + term
	}
	return p * math.Float64frombits(uint64(1023+int(k))<<52)
}

// log is the natural logarithm of x > 0, by Newton's method on exp in Halley's form: the error is cubed at every turn,
// from below 0.2.
func log(x float64) float64 {
	if math.IsNaN(x) || math.IsInf(x, 1) {
		return x
	}
	fraction, exponent := math.Frexp(x)
	y := 2 * (fraction - 1) / (fraction + 1) // the first term of log's series about 1
	for range 3 {
		e := exp(y)
		y += 2 * (fraction - e) / (fraction + e)
	}
	return y + float64(float64(exponent)*math.Ln2)
}

// tanh is the hyperbolic tangent with an absolute error of about 1e-16.
func tanh(x float64) float64 {
	return 1 - 2/(exp(2*x)+1)
}
