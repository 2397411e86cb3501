package device

import "math"

// Rotation gives the shape of rotary position embedding (Su et al. 2021, section 3.2.2): B samples of T positions, rows of
// Heads heads of S elements, S even. Elements i and S/2 + i of a head at position t, of which the first is Past, turn by t Theta^(-2i/S), or less: see
// Stretch.
type Rotation struct {
	B, T, Heads, S int
	Past           int // which Args.Past gives
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

// Rotate sets Y (B,T,Heads,S) to the turned X, of one type, F32 or BF16; Y may be X. The backward is the inverse. Exact for F32: the angles
// are those of Rotations, every product rounded before the sum.
type Rotate struct {
	Y, X Mem
	Rotation
}

func (o *Rotate) check(c checks) {
	if c.positive(&o.B, &o.T, &o.Heads, &o.S); o.Past < 0 || o.S%2 != 0 || !(o.Theta > 0) {
		c.fail("Past=%d S=%d Theta=%v, expected at least 0, an even number and a positive one", o.Past, o.S, o.Theta)
	}
	if s := o.Stretch; s.Factor < 0 || s.Original < 0 || s.Original > 0 && !(s.High > s.Low) {
		c.fail("%+v, expected a factor of at least 0, and High above Low", s)
	}
	n := o.B * o.T * o.Heads * o.S
	c.floating(n, &o.X)
	c.need(o.X.typ, n, &o.Y)
}

// Rotations holds the cosines and sines of rotary position embedding, computed once for a model. The zero value is ready.
type Rotations struct{ tables map[rotationKey][]float32 }

type rotationKey struct {
	s       int
	theta   float64
	stretch Stretch
}

// Table is (T,S) at least: for each position from Past on S/2 cosines, then S/2 sines. Every device takes them from here, so that
// all have the same bits.
func (r *Rotations) Table(o Rotation) []float32 {
	key := rotationKey{o.S, o.Theta, o.Stretch}
	table := r.tables[key]
	if n := o.Past + o.T; len(table) < n*o.S {
		table = r.make(o, max(n, 2*len(table)/o.S)) // one that grows by a position at a time is made seldom
		if r.tables == nil {
			r.tables = map[rotationKey][]float32{}
		}
		r.tables[key] = table
	}
	return table[o.Past*o.S:]
}

// make computes the table of positions below n.
func (r *Rotations) make(o Rotation, n int) []float32 {
	half, table := o.S/2, make([]float32, n*o.S)
	for i := range half {
		frequency := o.Stretch.stretched(math.Pow(o.Theta, -float64(2*i)/float64(o.S)))
		for t := range n {
			sin, cos := math.Sincos(float64(t) * frequency)
			table[t*o.S+i], table[t*o.S+half+i] = float32(cos), float32(sin)
		}
	}
	return table
}
