package layer

import (
	"slices"

	"github.com/avgpipe/avgpipe/stage/device"
)

// Lookup replaces streams of ids (R) by their rows of a table, (R,Width), and passes the others on, in their order. Several
// streams may share the table.
type Lookup struct {
	Path              string // the parameter is Path.weight
	Vocabulary, Width int
	In                []Stream
	Looked            [maxStreams]bool // which of In are looked up
	Init              Init
}

// Name implements Layer.
func (l *Lookup) Name() string { return l.Path }

// Params implements Layer: the table (V,Width).
func (l *Lookup) Params() []Param {
	return []Param{{Name: l.Path + ".weight", Shape: []int{l.Vocabulary, l.Width}, Init: l.Init, Decay: true}}
}

// after is stream i as it goes out.
func (l *Lookup) after(i int) Stream {
	if x := l.In[i]; !l.Looked[i] {
		return x
	}
	return Stream{Name: l.In[i].Name, Type: device.F32, Width: l.Width}
}

// Ports implements Layer.
func (l *Lookup) Ports(s Size) (in, out []Port) {
	for i := range l.In {
		out = append(out, l.after(i).port(s))
	}
	return streamPorts(l.In, s), out
}

// Emit implements Layer: ids have no gradient.
func (l *Lookup) Emit(b *Builder, t Tensors, in []device.Mem) (out []device.Mem, backward Backward) {
	for i, x := range in {
		if l.Looked[i] {
			x = b.Floats(l.Width)
			b.Do(&device.Embed{Out: x, Tokens: t.Params[0], IDs: in[i]})
		}
		out = append(out, x)
	}
	return out, func(dout []device.Mem) []device.Mem {
		din := slices.Clone(dout)
		for i, ids := range in {
			if l.Looked[i] {
				b.Do(&device.EmbedBackward{DTokens: t.Grads[0], DOut: dout[i], IDs: ids})
				din[i] = device.Mem{}
			}
		}
		return din
	}
}
