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

// Check implements Op.
func (o *Zero) Check() {}

// Check implements Op.
func (o *Copy) Check() {
	const op = "Copy"
	if o.X.typ == o.Y.typ {
		need(op, "x", o.X, o.Y.typ, o.Y.n)
		return
	}
	needFloating(op, "y", o.Y, o.X.n)
	needFloating(op, "x", o.X, o.Y.n)
}

// Check implements Op.
func (o *Scale) Check() { needF32("Scale", o.X.n, o.X) }

// Check implements Op.
func (o *Axpy) Check() { needF32("Axpy", o.Y.n, o.Y, o.X) }

// Check implements Op.
func (o *Lerp) Check() { needF32("Lerp", o.Y.n, o.Y, o.X) }

// Check implements Op.
func (o *Mul) Check() { needF32("Mul", o.Y.n, o.Y, o.X) }

// Check implements Op.
func (o *Add) Check() {
	const op = "Add"
	needFloating(op, "out", o.Out, o.Out.n)
	needFloating(op, "a", o.A, o.Out.n)
	needFloating(op, "b", o.B, o.Out.n)
}
