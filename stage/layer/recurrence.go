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
	left, right := l.halves(b)
	b.Do(&device.CopyColumns{Y: input, X: in[0], Columns: left})
	b.Do(&device.CopyColumns{Y: l.right(input), X: in[l.Joined], Columns: right})
	return input
}

// halves are the columns of x and of what is joined to it, from rows without gaps to those of the LSTM's input.
func (l *Recurrence) halves(b *Builder) (left, right device.Columns) {
	n, m := l.In[0].Width, l.In[l.Joined].Width
	return device.Columns{Rows: b.Rows(), Columns: n, YStride: l.LSTM.In, XStride: n},
		device.Columns{Rows: b.Rows(), Columns: m, YStride: l.LSTM.In, XStride: m}
}

// right is the LSTM's input from the first column on that is not of x.
func (l *Recurrence) right(input device.Mem) device.Mem {
	n := l.In[0].Width
	return input.Slice(n, input.Len()-n)
}

// split takes the gradient of the LSTM's input apart: that of x is set; that of what is joined is added to what reaches it past the layer.
func (l *Recurrence) split(b *Builder, dinput device.Mem, in, din []device.Mem) {
	if l.Joined == 0 {
		din[0] = dinput
		return
	}
	left, right := l.halves(b)
	left.YStride, left.XStride = left.XStride, left.YStride
	right.YStride, right.XStride = right.XStride, right.YStride
	din[0] = b.Like(in[0])
	b.Do(&device.CopyColumns{Y: din[0], X: dinput, Columns: left})
	joined := b.Like(in[l.Joined])
	if past := din[l.Joined]; !past.Absent() {
		b.Do(&device.Copy{Y: joined, X: past})
		right.Add = true
	}
	b.Do(&device.CopyColumns{Y: joined, X: l.right(dinput), Columns: right})
	din[l.Joined] = joined
}
