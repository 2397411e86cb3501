package layer

import "github.com/avgpipe/avgpipe/stage/device"

// Recurrence is one layer of a recurrent encoder or decoder: y = LSTM(drop([x, joined])) [+ x], where x is the first of the
// streams that come in and y of those that go out (Wu et al. 2016, sections 3.1 and 3.2).
type Recurrence struct {
	LSTM     LSTM // its In is the width of x, and of what is joined to it
	Dropout  float64
	Residual bool
	In       []Stream
	Joined   int   // which of In stands right of x: the attention's context; 0: none
	Mask     int   // which of In is the LSTM's mask; 0: none
	Passed   []int // which of In go out again, behind y, in this order
}

// Name implements Layer.
func (l *Recurrence) Name() string { return l.LSTM.Path }

// Params implements Layer.
func (l *Recurrence) Params() []Param { return l.LSTM.Params() }

// Ports implements Layer.
func (l *Recurrence) Ports(s Size) (in, out []Port) {
	out = row("y", s, l.LSTM.Width())
	for _, i := range l.Passed {
		out = append(out, l.In[i].port(s))
	}
	return streamPorts(l.In, s), out
}

// copies reports whether the LSTM's input is another than x.
func (l *Recurrence) copies() bool { return l.Joined > 0 || l.Dropout > 0 }

func (l *Recurrence) input(s Size) int {
	if !l.copies() {
		return 0
	}
	return s.Rows() * l.LSTM.In
}

// Saved implements Layer: the LSTM's input where it is not x, and what it saves.
func (l *Recurrence) Saved(s Size) int {
	return Padded(l.input(s)) + l.LSTM.Saved(s)
}

// Kept implements Layer: the gradient of the LSTM's input where that is not x, and what it keeps.
func (l *Recurrence) Kept(s Size) int { return Padded(l.input(s)) + l.LSTM.Kept(s) }

// FLOPs implements Layer.
func (l *Recurrence) FLOPs(s Size) (forward, backward float64) { return l.LSTM.FLOPs(s) }

// out finds y and, under their index in In, what is passed on in m.
func (l *Recurrence) out(m device.Mem, s Size) (mems [maxStreams]device.Mem) {
	c := cutter{mem: m}
	mems[0] = c.take(s.Rows() * l.LSTM.Width())
	for _, i := range l.Passed {
		p := l.In[i].port(s)
		mems[i] = c.takeAs(p.Type, p.Elements)
	}
	return mems
}

// inner is the LSTM's pass, with what belongs to the layer itself.
func (l *Recurrence) inner(p Pass) (q Pass, mask, dinput device.Mem) {
	in := streamMems(p.In, l.In, p.Size)
	q = p
	q.In = in[0]
	if l.copies() {
		saved := cutter{mem: p.Saved}
		q.In = saved.take(l.input(p.Size))
		q.Saved = saved.take(l.LSTM.Saved(p.Size))
	}
	if l.copies() && !p.Kept.Absent() {
		kept := cutter{mem: p.Kept}
		dinput = kept.take(l.input(p.Size))
		q.Kept = kept.take(l.LSTM.Kept(p.Size))
	}
	if l.Mask > 0 {
		mask = in[l.Mask]
	}
	return q, mask, dinput
}

// Forward implements Layer.
func (l *Recurrence) Forward(p Pass) {
	q, mask, _ := l.inner(p)
	in, out := streamMems(p.In, l.In, p.Size), l.out(p.Out, p.Size)
	if l.copies() {
		l.join(p, q.In, in)
	}
	q.Out = out[0]
	l.LSTM.forward(q, mask)
	if l.Residual {
		p.Device.Do(&device.Add{Out: out[0], A: out[0], B: in[0]})
	}
	for _, i := range l.Passed {
		p.Device.Do(&device.Copy{Y: out[i], X: in[i]})
	}
}

// join writes the LSTM's input.
func (l *Recurrence) join(p Pass, input device.Mem, in [maxStreams]device.Mem) {
	if l.Joined == 0 {
		p.Device.Do(&device.Copy{Y: input, X: in[0]})
	} else {
		left, right := l.halves(p)
		left.YStride, right.YStride = l.LSTM.In, l.LSTM.In
		p.Device.Do(&device.CopyColumns{Y: input, X: in[0], Columns: left})
		p.Device.Do(&device.CopyColumns{Y: l.right(input), X: in[l.Joined], Columns: right})
	}
	if l.Dropout > 0 && !p.Evaluating {
		dropElements(p, input, input, l.Name(), l.Dropout, l.LSTM.In)
	}
}

// halves are the columns of x and of what is joined to it, in rows without gaps.
func (l *Recurrence) halves(p Pass) (left, right device.Columns) {
	n, m := l.In[0].Width, l.In[l.Joined].Width
	return device.Columns{Rows: p.Size.Rows(), Columns: n, YStride: n, XStride: n},
		device.Columns{Rows: p.Size.Rows(), Columns: m, YStride: m, XStride: m}
}

// right is the LSTM's input from the first column on that is not of x.
func (l *Recurrence) right(input device.Mem) device.Mem {
	n := l.In[0].Width
	return input.Slice(n, input.Len()-n)
}

// BackwardInput implements Layer.
func (l *Recurrence) BackwardInput(p Pass) {
	d := p.Device
	q, mask, dinput := l.inner(p)
	dout, din := l.out(p.DOut, p.Size), streamMems(p.DIn, l.In, p.Size)
	q.DOut, q.DIn = dout[0], din[0]
	if l.copies() {
		q.DIn = dinput
	}
	l.LSTM.backwardInput(q, mask)
	for i := 1; i < len(l.In); i++ {
		if l.In[i].port(p.Size).Differentiable() {
			l.passBack(p, din[i], dout[i])
		}
	}
	if l.copies() {
		l.split(p, dinput, din)
	}
	if l.Residual {
		d.Do(&device.Add{Out: din[0], A: din[0], B: dout[0]})
	}
}

// passBack is the gradient of a stream from what it was passed on to.
func (l *Recurrence) passBack(p Pass, din, dout device.Mem) {
	if dout.Absent() {
		p.Device.Do(&device.Zero{X: din})
		return
	}
	p.Device.Do(&device.Copy{Y: din, X: dout})
}

// split takes the gradient of the LSTM's input apart: that of x is set, that of what is joined is added to.
func (l *Recurrence) split(p Pass, dinput device.Mem, din [maxStreams]device.Mem) {
	if l.Dropout > 0 {
		dropElements(p, dinput, dinput, l.Name(), l.Dropout, l.LSTM.In)
	}
	if l.Joined == 0 {
		p.Device.Do(&device.Copy{Y: din[0], X: dinput})
		return
	}
	left, right := l.halves(p)
	left.XStride, right.XStride, right.Add = l.LSTM.In, l.LSTM.In, true
	p.Device.Do(&device.CopyColumns{Y: din[0], X: dinput, Columns: left})
	p.Device.Do(&device.CopyColumns{Y: din[l.Joined], X: l.right(dinput), Columns: right})
}

// BackwardWeight implements Layer.
func (l *Recurrence) BackwardWeight(p Pass) {
	q, _, _ := l.inner(p)
	l.LSTM.BackwardWeight(q)
}
