package layer

import "github.com/avgpipe/avgpipe/stage/device"

// Embedding is y (B,T,D) = tokens[ids (B,T)] + positions[t]. Its input has no gradient.
type Embedding struct {
	memoryless
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

// FLOPs implements Layer: look-ups and sums, no matrix product.
func (l Embedding) FLOPs(s Size) (forward, backward float64) {
	n := float64(s.Rows()) * float64(l.Width)
	return n, 2 * n
}

// Forward implements Layer.
func (l Embedding) Forward(p Pass) {
	p.Device.Do(&device.Embed{Out: p.Out, Tokens: p.Params[0], Positions: p.Params[1], IDs: p.In, T: p.Size.T})
}

// BackwardInput implements Layer: token ids have no gradient.
func (l Embedding) BackwardInput(Pass) {}

// BackwardWeight implements Layer.
func (l Embedding) BackwardWeight(p Pass) {
	p.Device.Do(&device.EmbedBackward{DTokens: p.Grads[0], DPositions: p.Grads[1], DOut: p.DOut, IDs: p.In, T: p.Size.T})
}
