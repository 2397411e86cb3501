package layer

import "github.com/avgpipe/avgpipe/stage/device"

// TypedEmbedding is y (B,T,D) = tokens[ids (B,T)] + positions[t] + types[token_types (B,T)], BERT's (Devlin et al. 2019,
// section 3). Its input, behind which the mask (B,T) lies for the layers that follow, has no gradient.
type TypedEmbedding struct {
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

// Emit implements Layer: ids have no gradient.
func (l TypedEmbedding) Emit(b *Builder, t Tensors, in []device.Mem) (out []device.Mem, backward Backward) {
	ids, types, y := in[0], in[1], b.Floats(l.Width)
	b.Do(&device.Embed{Out: y, Tokens: t.Params[0], Positions: t.Params[1], IDs: ids, T: b.T})
	b.Do(&device.Embed{Out: y, Tokens: t.Params[2], IDs: types, Add: true})
	return []device.Mem{y}, func(dout []device.Mem) []device.Mem {
		b.Do(&device.EmbedBackward{DTokens: t.Grads[0], DPositions: t.Grads[1], DOut: dout[0], IDs: ids, T: b.T})
		b.Do(&device.EmbedBackward{DTokens: t.Grads[2], DOut: dout[0], IDs: types})
		return make([]device.Mem, len(in))
	}
}

// TokenEmbedding is y (R,D) = tokens[ids (R)]. Its input has no gradient.
type TokenEmbedding struct {
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

// Emit implements Layer: ids have no gradient.
func (l TokenEmbedding) Emit(b *Builder, t Tensors, in []device.Mem) (out []device.Mem, backward Backward) {
	return single(lookUp(b, t, in[0], l.Width))
}

// lookUp is the rows (R,width) of a table.
func lookUp(b *Builder, t Tensors, ids device.Mem, width int) (y device.Mem, back func(dy device.Mem) (dx device.Mem)) {
	y = b.Floats(width)
	b.Do(&device.Embed{Out: y, Tokens: t.Params[0], IDs: ids})
	return y, func(dy device.Mem) device.Mem {
		b.Do(&device.EmbedBackward{DTokens: t.Grads[0], DOut: dy, IDs: ids})
		return device.Mem{}
	}
}
