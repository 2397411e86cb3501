package device

// Function is a function of single elements.
type Function uint8

// The functions of Unary.
const (
	// GELU is the tanh form: 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) (Hendrycks and Gimpel 2016, section 2). Within 2e-6.
	GELU Function = iota
	// GELUErf is GELU itself: x/2 (1 + erf(x/sqrt(2))). Within 2e-6.
	GELUErf
	// Tanh is F32 only. Within 2e-6.
	Tanh
	// ReLU is max(x, 0); a NaN stays one. F32 only (exact).
	ReLU
)

type (
	// Unary sets Y = Function(X), of one type, F32 or BF16. Y may be X.
	Unary struct {
		Y, X Mem
		Function
	}
	// UnaryBackward sets DX = DY * Function'(X); DX may be DY. X is what went in; for Tanh it is what came out, and for ReLU it may
	// be. Tolerances are those of the function.
	UnaryBackward struct {
		DX, DY, X Mem
		Function
	}
	// SwiGLU sets Y = Gate / (1 + exp(-Gate)) * Up (Shazeer 2020, equation 6), of one type, F32 or BF16. Within 2e-6.
	SwiGLU struct{ Y, Gate, Up Mem }
	// SwiGLUBackward sets DGate and DUp from DY; one of them may be DY. Within 2e-6.
	SwiGLUBackward struct{ DGate, DUp, DY, Gate, Up Mem }
)

func (o *Unary) check(c checks)          { c.unary(o.Function, &o.Y, &o.X) }
func (o *UnaryBackward) check(c checks)  { c.unary(o.Function, &o.DX, &o.DY, &o.X) }
func (o *SwiGLU) check(c checks)         { c.same(&o.Y, &o.Gate, &o.Up) }
func (o *SwiGLUBackward) check(c checks) { c.same(&o.DGate, &o.DUp, &o.DY, &o.Gate, &o.Up) }

func (c checks) unary(f Function, operands ...*Mem) {
	if f == Tanh || f == ReLU {
		c.need(F32, operands[0].n, operands...)
	}
	c.same(operands...)
}
