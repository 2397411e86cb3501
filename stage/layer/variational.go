package layer

import "github.com/avgpipe/avgpipe/stage/device"

// VariationalDropout drops elements of x (R,Width), each at all positions of a sample or at none (Gal and Ghahramani 2016,
// section 4), and regularises activations (Merity et al. 2017, section 3): to the loss belong, though they are not counted in
// what is reported,
//
//	Activation * mean over all elements of y^2 + Temporal * mean over all elements but the last position's of (x_(t+1) - x_t)^2
//
// with the means over the batch. Evaluating, y = x.
type VariationalDropout struct {
	parameterless
	memoryless
	Path  string
	Width int
	Rate  float64 // in [0,1)
	// Activation and Temporal are the paper's alpha and beta.
	Activation, Temporal float64
}

// Name implements Layer.
func (l VariationalDropout) Name() string { return l.Path }

// Ports implements Layer.
func (l VariationalDropout) Ports(s Size) (in, out []Port) {
	return row("x", s, l.Width), row("y", s, l.Width)
}

// drop sets y = x with elements dropped; y may be x.
func (l VariationalDropout) drop(p Pass, y, x device.Mem) {
	p.Device.Do(&device.Dropout{Y: y, X: x, DropoutMask: device.DropoutMask{
		Rate: float32(l.Rate), Key: p.KeyOf(l.Path), First: p.First * l.Width,
		Rows: p.Size.Rows(), Columns: l.Width, Share: p.Size.T,
	}})
}

// Forward implements Layer.
func (l VariationalDropout) Forward(p Pass) {
	if p.Evaluating || l.Rate == 0 {
		p.Device.Do(&device.Copy{Y: p.Out, X: p.In})
		return
	}
	l.drop(p, p.Out, p.In)
}

// BackwardInput sets dx = drop(dy + 2 Activation / n drop(x)), and adds the temporal part.
func (l VariationalDropout) BackwardInput(p Pass) {
	d, n := p.Device, float64(p.Size.Rows()*l.Width)
	if l.Activation == 0 {
		d.Do(&device.Copy{Y: p.DIn, X: p.DOut})
	} else {
		d.Do(&device.Copy{Y: p.DIn, X: p.In})
		if l.Rate > 0 {
			l.drop(p, p.DIn, p.DIn)
		}
		d.Do(&device.Scale{X: p.DIn, A: float32(2 * l.Activation * float64(p.Weight) / n)})
		d.Do(&device.Add{Out: p.DIn, A: p.DIn, B: p.DOut})
	}
	if l.Rate > 0 {
		l.drop(p, p.DIn, p.DIn)
	}
	if l.Temporal > 0 && p.Size.T > 1 {
		l.temporal(p)
	}
}

// temporal adds the gradient of the mean of (x_(t+1) - x_t)^2: at one end of each difference its double, at the other the
// negative.
func (l VariationalDropout) temporal(p Pass) {
	s, d := p.Size, p.Device
	n := (s.T - 1) * l.Width
	scale := float32(2 * l.Temporal * float64(p.Weight) / float64(s.B*n))
	for b := range s.B {
		at := b * s.T * l.Width
		x, after := p.In.Slice(at, n), p.In.Slice(at+l.Width, n)
		dx, dafter := p.DIn.Slice(at, n), p.DIn.Slice(at+l.Width, n)
		d.Do(&device.Axpy{Y: dx, A: scale, X: x})
		d.Do(&device.Axpy{Y: dx, A: -scale, X: after})
		d.Do(&device.Axpy{Y: dafter, A: scale, X: after})
		d.Do(&device.Axpy{Y: dafter, A: -scale, X: x})
	}
}

// WordEmbedding is y (R,D) = tokens[ids (R)], in which whole words are dropped: all occurrences in an optimizer step of
// a word, or none (Gal and Ghahramani 2016, section 4.2; Merity et al. 2018, section 4.3). Its input has no gradient.
type WordEmbedding struct {
	Path              string // of the layer
	TokenPath         string // of the table: "encoder"
	Vocabulary, Width int
	Drop              float64 // the probability that a word is dropped, in [0,1)
	Init              Init
}

// Name implements Layer.
func (l WordEmbedding) Name() string { return l.Path }

// Params implements Layer: the table (V,D).
func (l WordEmbedding) Params() []Param {
	return []Param{{Name: l.TokenPath + ".weight", Shape: []int{l.Vocabulary, l.Width}, Init: l.Init, Decay: true}}
}

// Ports implements Layer.
func (l WordEmbedding) Ports(s Size) (in, out []Port) {
	return []Port{{Name: "ids", Type: device.I32, Elements: s.Rows(), Limit: l.Vocabulary}}, row("y", s, l.Width)
}

// Saved implements Layer.
func (l WordEmbedding) Saved(Size) int { return 0 }

// Kept implements Layer: the gradient of the looked-up rows (R,D) behind their dropout.
func (l WordEmbedding) Kept(s Size) int {
	if l.Drop == 0 {
		return 0
	}
	return s.Rows() * l.Width
}

// FLOPs implements Layer: look-ups, no matrix product.
func (l WordEmbedding) FLOPs(s Size) (forward, backward float64) {
	n := float64(s.Rows()) * float64(l.Width)
	return n, 2 * n
}

func (l WordEmbedding) dropout(p Pass) device.DropoutMask {
	return device.DropoutMask{Rate: float32(l.Drop), Key: p.KeyOf(l.Path), Rows: p.Size.Rows(), Columns: l.Width}
}

// Forward implements Layer.
func (l WordEmbedding) Forward(p Pass) {
	p.Device.Do(&device.Embed{Out: p.Out, Tokens: p.Params[0], IDs: p.In, T: p.Size.T})
	if l.Drop > 0 && !p.Evaluating {
		p.Device.Do(&device.Dropout{Y: p.Out, X: p.Out, IDs: p.In, DropoutMask: l.dropout(p)})
	}
}

// BackwardInput implements Layer: token ids have no gradient.
func (l WordEmbedding) BackwardInput(Pass) {}

// BackwardWeight implements Layer.
func (l WordEmbedding) BackwardWeight(p Pass) {
	dout := p.DOut
	if l.Drop > 0 {
		dout = p.Kept
		p.Device.Do(&device.Dropout{Y: dout, X: p.DOut, IDs: p.In, DropoutMask: l.dropout(p)})
	}
	p.Device.Do(&device.EmbedBackward{DTokens: p.Grads[0], DOut: dout, IDs: p.In, T: p.Size.T})
}
