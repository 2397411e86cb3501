package device

// Activations are functions of single elements, with their derivatives.
type Activations interface {
	// GELU sets y = gelu(x), the tanh form: 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))). Within 2e-6.
	// y and x are of one type.
	GELU(y, x Mem)
	// GELUBackward sets dx = dy * gelu'(x); dx may be dy. Within 2e-6. All are of one type.
	GELUBackward(dx, dy, x Mem)
}
