package device

import (
	"fmt"
	"math"
)

// Rotation gives the shape of rotary position embedding (Su et al. 2021, section 3.2.2): B samples of T positions, rows of
// Heads heads of S elements, S even. Elements i and S/2 + i of a head at position t turn by t Theta^(-2i/S), or less: see Stretch.
type Rotation struct {
	B, T, Heads, S int
	Theta          float64
	Stretch        Stretch
	Inverse        bool // turn back: the backward
}

// Stretch slows the turning down, for samples that are longer than those that a model was first trained on. The zero value
// does not.
type Stretch struct {
	// Factor divides the angles per position (Chen et al. 2023, section 3.2); 0 or 1: not.
	Factor float64
	// Original, when above 0, is the length first trained on. Elements that turn more than High times over it then keep their
	// angle, those that turn less than Low times have it divided, with a linear transition between (Llama Team 2024, as
	// published with LLaMA 3.1).
	Original  int
	Low, High float64
}

// stretched is the angle per position in place of a.
func (s Stretch) stretched(a float64) float64 {
	if s.Factor == 0 || s.Factor == 1 {
		return a
	}
	if s.Original == 0 {
		return a / s.Factor
	}
	turns := float64(s.Original) * a / (2 * math.Pi)
	kept := min(max((turns-s.Low)/(s.High-s.Low), 0), 1)
	return float64((1-kept)*(a/s.Factor)) + float64(kept*a)
}

// Transformers are the operations of the transformers after GPT-2. Operands named in capitals below are F32 or BF16; the
// others are F32, ids I32. Arithmetic is in F32 and a BF16 result is rounded once, to nearest.
type Transformers interface {
	// RMSNorm sets Y (R,C) = x * rstd * weight (C) per row and stores rstd (R) = 1/sqrt(mean(x^2) + epsilon) (Zhang and
	// Sennrich 2019, equation 4).
	RMSNorm(y, rstd, x, weight Mem, rows, columns int, epsilon float32)
	// RMSNormBackward sets dx (R,C) from DY, and adds plus (R,C) to it where that is not absent: the gradient that reaches x past
	// the norm. dx may be dy, not x or plus. See RMSNormBackwardWeight for the other half.
	RMSNormBackward(dx, dy, x, rstd, weight, plus Mem, rows, columns int)
	// RMSNormBackwardWeight sets dweight (C) += sum DY * x * rstd.
	RMSNormBackwardWeight(dweight, dy, x, rstd Mem, rows, columns int)

	// Rotate sets Y (B,T,Heads,S) to the turned X; y may be x. The backward is the inverse. Exact for F32: the angles are
	// those of Rotations, every product rounded before the sum.
	Rotate(y, x Mem, r Rotation)

	// SwiGLU sets Y = gate / (1 + exp(-gate)) * up of GATE and UP (Shazeer 2020, equation 6). Within 2e-6.
	SwiGLU(y, gate, up Mem)
	// SwiGLUBackward sets DGATE and DUP from DY; one of them may be dy. Within 2e-6.
	SwiGLUBackward(dgate, dup, dy, gate, up Mem)

	// GELUErf sets Y = x/2 (1 + erf(x/sqrt(2))) of X (Hendrycks and Gimpel 2016, section 2): GELU itself, not its tanh form.
	// Within 2e-6.
	GELUErf(y, x Mem)
	// GELUErfBackward sets DX from DY and X; dx may be dy. Within 2e-6.
	GELUErfBackward(dx, dy, x Mem)
	// Tanh sets y = tanh(x); y may be x. Within 2e-6.
	Tanh(y, x Mem)
	// TanhBackward sets dx = dy (1 - y^2); dx may be dy (exact).
	TanhBackward(dx, dy, y Mem)

	// AddRows adds table[ids (R)] (V,D) to y (R,D) (exact). The backward is that of Embed without positions.
	AddRows(y, table, ids Mem, rows, width int)
}

// float panics unless m has n elements of F32 or BF16.
func float(op, operand string, m Mem, n int) {
	if m.typ != BF16 {
		Need(op, operand, m, F32, n)
	}
	Need(op, operand, m, m.typ, n)
}

// CheckRMSNorm panics unless the operands of RMSNorm fit.
func CheckRMSNorm(y, rstd, x, weight Mem, rows, columns int) {
	const op = "RMSNorm"
	float(op, "y", y, rows*columns)
	Need(op, "rstd", rstd, F32, rows)
	Need(op, "x", x, F32, rows*columns)
	Need(op, "weight", weight, F32, columns)
}

// CheckRMSNormBackward panics unless the operands of RMSNormBackward fit.
func CheckRMSNormBackward(dx, dy, x, rstd, weight, plus Mem, rows, columns int) {
	const op = "RMSNormBackward"
	Need(op, "dx", dx, F32, rows*columns)
	float(op, "dy", dy, rows*columns)
	Need(op, "x", x, F32, rows*columns)
	Need(op, "rstd", rstd, F32, rows)
	Need(op, "weight", weight, F32, columns)
	needOptional(op, "plus", plus, rows*columns)
}

// CheckRMSNormBackwardWeight panics unless the operands of RMSNormBackwardWeight fit.
func CheckRMSNormBackwardWeight(dweight, dy, x, rstd Mem, rows, columns int) {
	const op = "RMSNormBackwardWeight"
	Need(op, "dweight", dweight, F32, columns)
	float(op, "dy", dy, rows*columns)
	Need(op, "x", x, F32, rows*columns)
	Need(op, "rstd", rstd, F32, rows)
}

// Check panics unless the operands of Rotate fit.
func (r Rotation) Check(y, x Mem) {
	const op = "Rotate"
	if r.B < 1 || r.T < 1 || r.Heads < 1 || r.S < 2 || r.S%2 != 0 || !(r.Theta > 0) {
		panic(fmt.Sprintf("device: %s: B=%d T=%d Heads=%d S=%d Theta=%v, expected positive numbers, S even", op, r.B, r.T, r.Heads,
			r.S, r.Theta))
	}
	if s := r.Stretch; s.Factor < 0 || s.Original < 0 || s.Original > 0 && !(s.High > s.Low) {
		panic(fmt.Sprintf("device: %s: %+v, expected a factor of at least 0, and High above Low", op, s))
	}
	n := r.B * r.T * r.Heads * r.S
	float(op, "x", x, n)
	Need(op, "y", y, x.typ, n)
}

// CheckSame panics unless all operands are of one type, F32 or BF16, and of one length.
func CheckSame(op string, operands ...Mem) {
	first := operands[0]
	float(op, "operand", first, first.n)
	for _, m := range operands[1:] {
		Need(op, "operand", m, first.typ, first.n)
	}
}

// CheckAddRows panics unless the operands of AddRows fit and every id lies in the table. It reads ids, so they must be in
// host memory.
func CheckAddRows(y, table, ids Mem, rows, width int) {
	CheckAddRowsShape(y, table, ids, rows, width)
	checkIDs("AddRows", "ids", ids.I32(), 0, table.n/width)
}

// CheckAddRowsShape is CheckAddRows without a look at the ids.
func CheckAddRowsShape(y, table, ids Mem, rows, width int) {
	const op = "AddRows"
	if width < 1 || table.n%width != 0 {
		panic(fmt.Sprintf("device: %s: the table has %d f32, expected a multiple of the width %d", op, table.n, width))
	}
	Need(op, "y", y, F32, rows*width)
	NeedAtLeast(op, "table", table, F32, width)
	Need(op, "ids", ids, I32, rows)
}

// Rotations holds the cosines and sines of rotary position embedding, computed once for a model. The zero value is ready.
type Rotations struct{ tables map[rotationKey][]float32 }

type rotationKey struct {
	s       int
	theta   float64
	stretch Stretch
}

// Table is (T,S) at least: for each position S/2 cosines, then S/2 sines. Every device takes them from here, so that all
// have the same bits.
func (r *Rotations) Table(o Rotation) []float32 {
	key := rotationKey{o.S, o.Theta, o.Stretch}
	table := r.tables[key]
	if len(table) >= o.T*o.S {
		return table
	}
	half := o.S / 2
	table = make([]float32, o.T*o.S)
	for i := range half {
		frequency := o.Stretch.stretched(math.Pow(o.Theta, -float64(2*i)/float64(o.S)))
		for t := range o.T {
			sin, cos := math.Sincos(float64(t) * frequency)
			table[t*o.S+i], table[t*o.S+half+i] = float32(cos), float32(sin)
		}
	}
	if r.tables == nil {
		r.tables = map[rotationKey][]float32{}
	}
	r.tables[key] = table
	return table
}
