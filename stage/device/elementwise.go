package device

// Operations on runs of elements.
type (
	// Zero sets X = 0.
	Zero struct{ X Mem }
	// Copy sets Y = X, rounded to Y's type when that is BF16 and X is F32 (to nearest, ties to even). Where the types differ, Y must
	// not overlap X.
	Copy struct{ Y, X Mem }
	// Scale sets X = A X.
	Scale struct {
		X  Mem
		A  float32
		By Factor // of A, in a program
	}
	// Axpy sets Y = Y + A X, the product rounded before the sum (exact on every device).
	Axpy struct {
		Y  Mem
		A  float32
		X  Mem
		By Factor // of A, in a program
	}
	// Lerp sets Y = Y + A (X - Y), the product rounded before the sum; A = 1 sets Y = X (exact on every device).
	Lerp struct {
		Y Mem
		A float32
		X Mem
	}
	// Mul sets Y = Y * X, element by element.
	Mul struct{ Y, X Mem }
	// Add sets Out = A + B; Out may be A or B. Each is F32 or BF16.
	Add struct{ Out, A, B Mem }
)

func (o *Zero) check(checks)    {}
func (o *Scale) check(c checks) { c.need(F32, o.X.n, &o.X) }
func (o *Axpy) check(c checks)  { c.need(F32, o.Y.n, &o.Y, &o.X) }
func (o *Lerp) check(c checks)  { c.need(F32, o.Y.n, &o.Y, &o.X) }
func (o *Mul) check(c checks)   { c.need(F32, o.Y.n, &o.Y, &o.X) }
func (o *Add) check(c checks)   { c.floating(o.Out.n, &o.Out, &o.A, &o.B) }

func (o *Copy) check(c checks) {
	if o.X.typ != o.Y.typ {
		c.floating(o.Y.n, &o.Y, &o.X)
	}
	c.need(o.X.typ, o.Y.n, &o.X)
}
