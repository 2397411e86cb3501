package layer

import "github.com/avgpipe/avgpipe/stage/device"

// Table is a table of Rows rows, one an id. The zero Table is none.
type Table struct {
	Path string // of the tensor: "transformer.wte"
	Rows int
	Init Init
}

// Embedding is y (B,T,Width) = tokens[ids (B,T)] [+ positions[t]] [+ types[token_types (B,T)]]. With types it is BERT's (Devlin et al. 2019,
// section 3), and the mask (B,T) lies behind them for the layers that follow. Its inputs have no gradient.
type Embedding struct {
	Path                     string
	Tokens, Positions, Types Table
	Width                    int
	// Drop is the probability that a word is dropped, in [0,1): all its occurrences in an optimizer step, or none (Gal and Ghahramani 2016,
	// section 4.2; Merity et al. 2018, section 4.3).
	Drop float64
}

// Describe implements Layer: the parameters are the tables that there are, (Rows,Width), in their order.
func (l Embedding) Describe(s Size) Description {
	d := Description{Name: l.Path, Out: row("y", s, l.Width)}
	for _, table := range []Table{l.Tokens, l.Positions, l.Types} {
		if table.Rows > 0 {
			d.Params = append(d.Params, Param{Name: table.Path + ".weight", Shape: []int{table.Rows, l.Width}, Init: table.Init, Decay: true})
		}
	}
	d.In = []Port{{Name: "ids", Type: device.I32, Elements: s.Rows(), Limit: l.Tokens.Rows}}
	if l.Types.Rows > 0 {
		d.In = append(d.In, Port{Name: "token_types", Type: device.I32, Elements: s.Rows(), Limit: l.Types.Rows}, maskPort(s))
	}
	return d
}

// Emit implements Layer.
func (l Embedding) Emit(b *Builder, t Tensors, in []device.Mem) (out []device.Mem, backward Backward) {
	y, types := b.Floats(l.Width), len(t.Params)-1
	var positions, dpositions device.Mem
	if l.Positions.Rows > 0 {
		positions, dpositions = t.Params[1], t.Grads[1]
	}
	b.Do(&device.Embed{Out: y, Tokens: t.Params[0], Positions: positions, IDs: in[0], T: b.T})
	if l.Types.Rows > 0 {
		b.Do(&device.Embed{Out: y, Tokens: t.Params[types], IDs: in[1], Add: true})
	}
	return []device.Mem{l.drop(b, y, in[0])}, func(dout []device.Mem) []device.Mem {
		dy := l.drop(b, dout[0], in[0])
		b.Do(&device.EmbedBackward{DTokens: t.Grads[0], DPositions: dpositions, DOut: dy, IDs: in[0], T: b.T})
		if l.Types.Rows > 0 {
			b.Do(&device.EmbedBackward{DTokens: t.Grads[types], DOut: dy, IDs: in[1]})
		}
		return make([]device.Mem, len(in))
	}
}

// drop is x with words dropped.
func (l Embedding) drop(b *Builder, x, ids device.Mem) device.Mem {
	return b.dropped(x, ids, l.Drop, device.DropoutMask{Stream: device.StreamOf(l.Path), Rows: b.Rows(), Columns: l.Width})
}
