package layer

import "github.com/avgpipe/avgpipe/stage/device"

// NewMLP is the feed-forward branch of a transformer block: x (R,D) -> up (R,F) -> GELU -> down (R,D).
func NewMLP(path string, up, down Linear) *Chain {
	return NewChain(path, up, Activation{Function: device.GELU, Path: path + ".act", Width: up.Out}, down)
}

// NewBlock is a pre-norm transformer block, GPT-2's unit (Radford et al. 2019, section 2.3):
// x += attention(norm1(x)); x += mlp(norm2(x)), all (R,D). It is the unit in which a model is split into stages.
func NewBlock(path string, norm1 LayerNorm, attention *SelfAttention, norm2 LayerNorm, mlp Layer) *Chain {
	return NewChain(path,
		NewResidual(NewChain(attention.Path, norm1, attention)),
		NewResidual(NewChain(mlp.Name(), norm2, mlp)),
	)
}

// NewHead is what ends a language model: the final norm, then the logits (R,V) = norm(x) W^T.
func NewHead(path string, norm LayerNorm, logits Linear) *Chain { return NewChain(path, norm, logits) }
