package device

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

func (o *Embed) check(c checks) {
	if c.rows(&o.Out, &o.Tokens, &o.Positions, &o.IDs, o.Past+o.T, o.Width()); o.Add && !o.Positions.Absent() {
		c.fail("Positions with Add; add the positions in the operation that sets Out")
	}
}

func (o *EmbedBackward) check(c checks) {
	c.rows(&o.DOut, &o.DTokens, &o.DPositions, &o.IDs, o.T, o.Width())
}

func (c checks) rows(out, tokens, positions, ids *Mem, t, width int) {
	if width < 1 || tokens.n%width != 0 {
		c.fail("%s has %d f32, expected a multiple of the width %d", c.name(tokens), tokens.n, width)
	}
	c.need(I32, ids.n, ids)
	c.need(F32, ids.n*width, out)
	if c.atLeast(F32, width, tokens); !positions.Absent() {
		c.atLeast(F32, t*width, positions)
	}
}
