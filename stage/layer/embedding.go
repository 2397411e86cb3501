package layer

import "github.com/avgpipe/avgpipe/stage/device"

// Embedding is y (B,T,D) = tokens[ids (B,T)] + positions[t]. Its input has no gradient.
type Embedding struct {
	Path                    string // of the layer: "transformer.embedding"
	TokenPath, PositionPath string // of the tensors: "transformer.wte", "transformer.wpe"
	Vocabulary, MaxT, Width int
	TokenInit, PositionInit Init
}

// Name implements Layer.
func (l Embedding) Name() string { return l.Path }

// Params implements Layer: token table (V,D), position table (MaxT,D).
func (l Embedding) Params() []Param {
	return []Param{
		{Name: l.TokenPath + ".weight", Shape: []int{l.Vocabulary, l.Width}, Init: l.TokenInit, Decay: true},
		{Name: l.PositionPath + ".weight", Shape: []int{l.MaxT, l.Width}, Init: l.PositionInit, Decay: true},
	}
}

// Ports implements Layer.
func (l Embedding) Ports(s Size) (in, out []Port) {
	return []Port{{Name: "ids", Type: device.I32, Elements: s.Rows(), Limit: l.Vocabulary}}, row("y", s, l.Width)
}

// Emit implements Layer: token ids have no gradient.
func (l Embedding) Emit(b *Builder, t Tensors, in []device.Mem) (out []device.Mem, backward Backward) {
	y := b.Floats(l.Width)
	b.Do(&device.Embed{Out: y, Tokens: t.Params[0], Positions: t.Params[1], IDs: in[0], T: b.T})
	return single(y, func(dy device.Mem) device.Mem {
		b.Do(&device.EmbedBackward{DTokens: t.Grads[0], DPositions: t.Grads[1], DOut: dy, IDs: in[0], T: b.T})
		return device.Mem{}
	})
}
