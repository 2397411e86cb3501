package device

import "fmt"

type (
	// Embed sets, or with Add adds to, Out (B,T,D) = Tokens[IDs (B,T)] (V,D) + Positions[Past+t] (>=Past+T,D). Positions may be absent, and then
	// T and Past, which Args.Past gives, have no meaning. D is the quotient of the lengths of Out and IDs.
	Embed struct {
		Out, Tokens, Positions, IDs Mem
		T, Past                     int
		Add                         bool
	}
	// EmbedBackward sets DTokens (V,D) += scatter(DOut (B,T,D)) and DPositions (>=T,D) += the sum over samples of DOut, unless that is
	// absent. Additions happen in the order of the rows.
	EmbedBackward struct {
		DTokens, DPositions, DOut, IDs Mem
		T                              int
	}
)

// Width is D.
func (o *Embed) Width() int { return o.Out.n / max(o.IDs.n, 1) }

// Width is D.
func (o *EmbedBackward) Width() int { return o.DOut.n / max(o.IDs.n, 1) }

// Check implements Op.
func (o *Embed) Check() {
	needRows("Embed", o.Out, o.Tokens, o.Positions, o.IDs, o.Past+o.T, o.Width())
	if o.Add && !o.Positions.Absent() {
		panic("device: Embed: Positions with Add; add the positions in the operation that sets Out")
	}
}

// Check implements Op.
func (o *EmbedBackward) Check() {
	needRows("EmbedBackward", o.DOut, o.DTokens, o.DPositions, o.IDs, o.T, o.Width())
}

func needRows(op string, out, tokens, positions, ids Mem, t, width int) {
	if width < 1 || tokens.n%width != 0 {
		panic(fmt.Sprintf("device: %s: tokens has %d f32, expected a multiple of the width %d", op, tokens.n, width))
	}
	need(op, "ids", ids, I32, ids.n)
	need(op, "out", out, F32, ids.n*width)
	needAtLeast(op, "tokens", tokens, F32, width)
	if !positions.Absent() {
		needAtLeast(op, "positions", positions, F32, t*width)
	}
}
