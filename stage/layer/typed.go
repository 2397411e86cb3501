package layer

import "github.com/avgpipe/avgpipe/stage/device"

// TypedEmbedding is y (B,T,D) = tokens[ids (B,T)] + positions[t] + types[token_types (B,T)], BERT's (Devlin et al. 2019,
// section 3). Its input, behind which the mask (B,T) lies for the layers that follow, has no gradient.
type TypedEmbedding struct {
	memoryless
	Path                              string
	TokenPath, PositionPath, TypePath string // of the tensors
	Vocabulary, MaxT, Types, Width    int
	Init                              Init
}

// Name implements Layer.
func (l TypedEmbedding) Name() string { return l.Path }

// Params implements Layer: token table (V,D), position table (MaxT,D), type table (Types,D).
func (l TypedEmbedding) Params() []Param {
	return []Param{
		{Name: l.TokenPath + ".weight", Shape: []int{l.Vocabulary, l.Width}, Init: l.Init, Decay: true},
		{Name: l.PositionPath + ".weight", Shape: []int{l.MaxT, l.Width}, Init: l.Init, Decay: true},
		{Name: l.TypePath + ".weight", Shape: []int{l.Types, l.Width}, Init: l.Init, Decay: true},
	}
}

// Ports implements Layer.
func (l TypedEmbedding) Ports(s Size) (in, out []Port) {
	return []Port{
		{Name: "ids", Type: device.I32, Elements: s.Rows(), Limit: l.Vocabulary},
		{Name: "token_types", Type: device.I32, Elements: s.Rows(), Limit: l.Types},
		maskPort(s),
	}, row("y", s, l.Width)
}

// FLOPs implements Layer: look-ups and sums, no matrix product.
func (l TypedEmbedding) FLOPs(s Size) (forward, backward float64) {
	n := float64(s.Rows()) * float64(l.Width)
	return 2 * n, 3 * n
}

// inputs are the ids and the token types.
func (l TypedEmbedding) inputs(p Pass) (ids, types device.Mem) {
	c := cutter{mem: p.In}
	return c.takeAs(device.I32, p.Size.Rows()), c.takeAs(device.I32, p.Size.Rows())
}

// Forward implements Layer.
func (l TypedEmbedding) Forward(p Pass) {
	ids, types := l.inputs(p)
	p.Device.Do(&device.Embed{Out: p.Out, Tokens: p.Params[0], Positions: p.Params[1], IDs: ids, T: p.Size.T})
	p.Device.Do(&device.Embed{Out: p.Out, Tokens: p.Params[2], IDs: types, Add: true})
}

// BackwardInput implements Layer: ids have no gradient.
func (l TypedEmbedding) BackwardInput(Pass) {}

// BackwardWeight implements Layer.
func (l TypedEmbedding) BackwardWeight(p Pass) {
	ids, types := l.inputs(p)
	p.Device.Do(&device.EmbedBackward{DTokens: p.Grads[0], DPositions: p.Grads[1], DOut: p.DOut, IDs: ids, T: p.Size.T})
	p.Device.Do(&device.EmbedBackward{DTokens: p.Grads[2], DOut: p.DOut, IDs: types, T: p.Size.T})
}

// TokenEmbedding is y (R,D) = tokens[ids (R)]. Its input has no gradient.
type TokenEmbedding struct {
	memoryless
	Path              string // of the layer and its tensor
	Vocabulary, Width int
	Init              Init
}

// Name implements Layer.
func (l TokenEmbedding) Name() string { return l.Path }

// Params implements Layer: token table (V,D).
func (l TokenEmbedding) Params() []Param {
	return []Param{{Name: l.Path + ".weight", Shape: []int{l.Vocabulary, l.Width}, Init: l.Init, Decay: true}}
}

// Ports implements Layer.
func (l TokenEmbedding) Ports(s Size) (in, out []Port) {
	return []Port{{Name: "ids", Type: device.I32, Elements: s.Rows(), Limit: l.Vocabulary}}, row("y", s, l.Width)
}

// FLOPs implements Layer: look-ups, no matrix product.
func (l TokenEmbedding) FLOPs(s Size) (forward, backward float64) {
	n := float64(s.Rows()) * float64(l.Width)
	return n, n
}

// Forward implements Layer.
func (l TokenEmbedding) Forward(p Pass) {
	p.Device.Do(&device.Embed{Out: p.Out, Tokens: p.Params[0], IDs: p.In, T: p.Size.T})
}

// BackwardInput implements Layer: ids have no gradient.
func (l TokenEmbedding) BackwardInput(Pass) {}

// BackwardWeight implements Layer.
func (l TokenEmbedding) BackwardWeight(p Pass) {
	p.Device.Do(&device.EmbedBackward{DTokens: p.Grads[0], DOut: p.DOut, IDs: p.In, T: p.Size.T})
}
