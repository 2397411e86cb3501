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
	Looked            []int // which of In are looked up
	Init              Init
}

// after is stream i as it goes out.
func (l *Lookup) after(i int) Stream {
	if !slices.Contains(l.Looked, i) {
		return l.In[i]
	}
	return Stream{Name: l.In[i].Name, Type: device.F32, Width: l.Width}
}

// Describe implements Layer: the parameter is the table (V,Width).
func (l *Lookup) Describe(s Size) Description {
	table := Param{Name: l.Path + ".weight", Shape: []int{l.Vocabulary, l.Width}, Init: l.Init, Decay: true}
	d := Description{Name: l.Path, Params: []Param{table}, In: streamPorts(l.In, s)}
	for i := range l.In {
		d.Out = append(d.Out, l.after(i).port(s))
	}
	return d
}

// Emit implements Layer: ids have no gradient.
func (l *Lookup) Emit(b *Builder, t Tensors, in []device.Mem) (out []device.Mem, backward Backward) {
	for i, x := range in {
		if slices.Contains(l.Looked, i) {
			x = b.Floats(l.Width)
			b.Do(&device.Embed{Out: x, Tokens: t.Params[0], IDs: in[i]})
		}
		out = append(out, x)
	}
	return out, func(dout []device.Mem) []device.Mem {
		din := slices.Clone(dout)
		for _, i := range l.Looked {
			b.Do(&device.EmbedBackward{DTokens: t.Grads[0], DOut: dout[i], IDs: in[i]})
			din[i] = device.Mem{}
		}
		return din
	}
}
