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

// Describe implements Layer: the parameters are the LSTM's.
func (l *Recurrence) Describe(s Size) Description {
	d := l.LSTM.Describe(s)
	d.In = streamPorts(l.In, s)
	for _, i := range l.Passed {
		d.Out = append(d.Out, l.In[i].port(s))
	}
	return d
}

// Emit implements Layer.
func (l *Recurrence) Emit(b *Builder, t Tensors, in []device.Mem) (out []device.Mem, backward Backward) {
	input, mask := b.drop(l.join(b, in), l.LSTM.Path, l.Dropout, l.LSTM.In), device.Mem{}
	if l.Mask > 0 {
		mask = in[l.Mask]
	}
	y, back := l.LSTM.emit(b, t, input, mask)
	if l.Residual {
		y = b.add(y, in[0])
	}
	out = []device.Mem{y}
	for _, i := range l.Passed {
		out = append(out, in[i])
	}
	return out, func(dout []device.Mem) []device.Mem {
		din := make([]device.Mem, len(in))
		for n, i := range l.Passed {
			din[i] = dout[1+n]
		}
		l.split(b, b.drop(back(dout[0]), l.LSTM.Path, l.Dropout, l.LSTM.In), in, din)
		if l.Residual {
			din[0] = b.add(din[0], dout[0])
		}
		return din
	}
}

// join is the LSTM's input before its dropout: x, or x and what stands right of it.
func (l *Recurrence) join(b *Builder, in []device.Mem) device.Mem {
	if l.Joined == 0 {
		return in[0]
	}
	input := b.Floats(l.LSTM.In)
	for _, i := range []int{0, l.Joined} {
		part, columns := l.part(b, input, i)
		b.Do(&device.CopyColumns{Y: part, X: in[i], Columns: columns})
	}
	return input
}

// part is the LSTM's input from the first column of stream i on, and that stream's columns, from rows without gaps to those of the input.
func (l *Recurrence) part(b *Builder, input device.Mem, i int) (device.Mem, device.Columns) {
	at, width := 0, l.In[i].Width
	if i > 0 {
		at = l.In[0].Width
	}
	return input.Slice(at, input.Len()-at), device.Columns{Rows: b.Rows(), Columns: width, YStride: l.LSTM.In, XStride: width}
}

// split takes the gradient of the LSTM's input apart: that of x is set; that of what is joined is added to what reaches it past the layer.
func (l *Recurrence) split(b *Builder, dinput device.Mem, in, din []device.Mem) {
	if l.Joined == 0 {
		din[0] = dinput
		return
	}
	for _, i := range []int{0, l.Joined} {
		part, columns := l.part(b, dinput, i)
		columns.YStride, columns.XStride = columns.XStride, columns.YStride
		past := din[i]
		din[i] = b.Like(in[i])
		if columns.Add = !past.Absent(); columns.Add {
			b.Do(&device.Copy{Y: din[i], X: past})
		}
		b.Do(&device.CopyColumns{Y: din[i], X: part, Columns: columns})
	}
}
