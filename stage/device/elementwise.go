package device

// Elementwise works on runs of elements.
type Elementwise interface {
	// Zero sets x = 0.
	Zero(x Mem)
	// Copy sets y = x.
	Copy(y, x Mem)
	// Scale sets x = a x.
	Scale(x Mem, a float32)
	// Axpy sets y = y + a x, the product rounded before the sum (exact on every device).
	Axpy(y Mem, a float32, x Mem)
	// Lerp sets y = y + a (x - y), the product rounded before the sum; a = 1 sets y = x (exact on every device).
	Lerp(y Mem, a float32, x Mem)
	// Mul sets y = y * x, element by element.
	Mul(y, x Mem)
	// Convert sets y = x, rounded to y's type when that is BF16 (to nearest, ties to even). y must not overlap x.
	Convert(y, x Mem)
	// Add sets out = a + b; out may be a or b. Each is F32 or BF16.
	Add(out, a, b Mem)
	// Dot is the sum of x[i] y[i], accumulated in float64 in a fixed order.
	Dot(x, y Mem) float64
}
