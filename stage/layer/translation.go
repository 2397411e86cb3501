package layer

import "github.com/avgpipe/avgpipe/stage/device"

// Lookup replaces streams of ids (R) by their rows of a table, (R,Width), and passes the others on, in their order. Several
// streams may share the table.
type Lookup struct {
	memoryless
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

// FLOPs implements Layer: look-ups, no matrix product.
func (l *Lookup) FLOPs(s Size) (forward, backward float64) {
	for i := range l.In {
		if l.Looked[i] {
			forward += float64(s.Rows()) * float64(l.Width)
		}
	}
	return forward, 2 * forward
}

func (l *Lookup) out(m device.Mem, s Size) (mems [maxStreams]device.Mem) {
	c := cutter{mem: m}
	for i := range l.In {
		p := l.after(i).port(s)
		mems[i] = c.takeAs(p.Type, p.Elements)
	}
	return mems
}

// Forward implements Layer.
func (l *Lookup) Forward(p Pass) {
	in, out := streamMems(p.In, l.In, p.Size), l.out(p.Out, p.Size)
	for i := range l.In {
		if l.Looked[i] {
			p.Device.Do(&device.Embed{Out: out[i], Tokens: p.Params[0], IDs: in[i], T: p.Size.T})
		} else {
			p.Device.Do(&device.Copy{Y: out[i], X: in[i]})
		}
	}
}

// BackwardInput implements Layer: ids have no gradient.
func (l *Lookup) BackwardInput(p Pass) {
	if p.DIn.Absent() {
		return
	}
	din, dout := streamMems(p.DIn, l.In, p.Size), l.out(p.DOut, p.Size)
	for i, x := range l.In {
		if x.Type != device.I32 {
			p.Device.Do(&device.Copy{Y: din[i], X: dout[i]})
		}
	}
}

// BackwardWeight implements Layer.
func (l *Lookup) BackwardWeight(p Pass) {
	in, dout := streamMems(p.In, l.In, p.Size), l.out(p.DOut, p.Size)
	for i := range l.In {
		if l.Looked[i] {
			p.Device.Do(&device.EmbedBackward{DTokens: p.Grads[0], DOut: dout[i], IDs: in[i], T: p.Size.T})
		}
	}
}
