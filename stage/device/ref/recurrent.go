package ref

import (
	"math"

	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/flat"
)

// positions gives the positions of a direction in their order: the first one, and the step from one to the next.
func positions(l device.LSTMShape) (first, step int) {
	if l.Reverse {
		return l.T - 1, -1
	}
	return 0, 1
}

// lstm runs device.LSTM.
func (d *Device) lstm(o *device.LSTM) {
	l := o.LSTMShape
	x := sequence{l: l, out: o.Out.F32(), gates: o.Gates.F32(), cells: o.Cells.F32(), weight: d.read(0, o.Weight)}
	previous := d.result(1, o.Previous)
	first, step := positions(l)
	for b := range l.B {
		for n, t := 0, first; n < l.T; n, t = n+1, t+step {
			row := b*l.T + t
			h := previous[row*l.H:][:l.H]
			clear(h)
			var before []float32
			switch {
			case n > 0:
				copy(h, x.out[(row-step)*l.OutStride:])
				roundTo(o.Weight.Type(), h)
				before = x.cells[(row-step)*l.H:]
			case !o.Before.Absent():
				before = o.Before.F32()[b*l.H:]
			}
			x.forward(row, before, h)
		}
	}
	d.finish(1, o.Previous)
}

// sequence holds the operands of one LSTM call.
type sequence struct {
	l                         device.LSTMShape
	out, gates, cells, weight []float32
}

func (x *sequence) masked(row int) bool { return !x.l.Mask.Absent() && x.l.Mask.I32()[row] == 0 }

// forward computes one position of one sample; h is the output at the position before, and before the cells, nil where there are none.
func (x *sequence) forward(row int, before, h []float32) {
	n := x.l.H
	gates, cells, out := x.gates[row*4*n:][:4*n], x.cells[row*n:][:n], x.out[row*x.l.OutStride:][:n]
	if x.masked(row) {
		clear(gates)
		clear(cells)
		clear(out)
		return
	}
	for j := range gates {
		v := float64(gates[j] + dot(h, x.weight[j*n:][:n]))
		if j/n == 2 {
			gates[j] = float32(tanh(v))
		} else {
			gates[j] = float32(sigmoid(v))
		}
	}
	i, f, g, o := gates[:n], gates[n:2*n], gates[2*n:3*n], gates[3*n:]
	for c := range cells {
		cells[c] = float32(i[c] * g[c])
		if before != nil {
			cells[c] += float32(f[c] * before[c])
		}
		out[c] = o[c] * float32(tanh(float64(cells[c])))
	}
}

func sigmoid(x float64) float64 { return 1 / (1 + exp(-x)) }

// lstmBackward runs device.LSTMBackward: backpropagation through time (Werbos 1990).
func (d *Device) lstmBackward(o *device.LSTMBackward) {
	l, carry := o.LSTMShape, o.Carry.F32()
	x := sequence{l: l, gates: o.Gates.F32(), cells: o.Cells.F32(), weight: d.read(0, o.Weight)}
	factors := grow(d.wide[1], 4*l.H) // dgates as they are multiplied
	d.wide[1] = factors
	first, step := positions(l)
	for b := range l.B {
		dh, dc := carry[b*l.H:][:l.H], carry[(l.B+b)*l.H:][:l.H]
		clear(dh)
		clear(dc)
		for n := l.T - 1; n >= 0; n-- {
			row := b*l.T + first + n*step
			dg := o.DGates.F32()[row*4*l.H:][:4*l.H]
			var before []float32
			if n > 0 {
				before = x.cells[(row-step)*l.H:][:l.H]
			}
			x.backward(row, dg, o.DOut.F32()[row*l.OutStride:][:l.H], dh, dc, before)
			clear(dh)
			copy(factors, dg)
			roundTo(o.Weight.Type(), factors)
			for j, v := range factors {
				flat.Axpy(dh, v, x.weight[j*l.H:][:l.H])
			}
		}
	}
}

// backward computes dgates at one position of one sample from the gradients of its output, dout from outside and dh from
// the position after, and dc of its cells, which it replaces by that of the cells before (nil at the first position).
func (x *sequence) backward(row int, dgates, dout, dh, dc, before []float32) {
	n := x.l.H
	if x.masked(row) {
		clear(dgates)
		clear(dc)
		return
	}
	gates := x.gates[row*4*n:][:4*n]
	for c := range n {
		i, f, g, o := gates[c], gates[n+c], gates[2*n+c], gates[3*n+c]
		squashed := float32(tanh(float64(x.cells[row*n+c])))
		h := dout[c] + dh[c]
		cell := dc[c] + float32(h*o*(1-float32(squashed*squashed)))
		dgates[c] = cell * g * i * (1 - i)
		dgates[n+c] = 0
		if before != nil {
			dgates[n+c] = cell * before[c] * f * (1 - f)
		}
		dgates[2*n+c] = cell * i * (1 - float32(g*g))
		dgates[3*n+c] = h * squashed * o * (1 - o)
		dc[c] = cell * f
	}
}

// additiveAttention runs device.AdditiveAttention.
func (d *Device) additiveAttention(a *device.AdditiveAttention) {
	for query := range a.B * a.T {
		p := a.Probabilities.F32()[query*a.T:][:a.T]
		from := query / a.T * a.T
		for key := range p {
			p[key] = float32(math.Inf(-1))
			if a.Mask.Absent() || a.Mask.I32()[from+key] != 0 {
				p[key] = float32(additiveScore(a.Q.F32()[query*a.N:][:a.N], a.K.F32()[(from+key)*a.N:], a.V.F32()))
			}
		}
		softmax(p)
	}
}

func additiveScore(q, k, v []float32) float64 {
	sum := 0.0
	for n := range q {
		sum += float64(float64(v[n]) * tanh(float64(q[n]+k[n])))
	}
	return sum
}

// additiveAttentionBackward runs device.AdditiveAttentionBackward. A key that is not attended to has probability 0, and so no gradient.
func (d *Device) additiveAttentionBackward(a *device.AdditiveAttentionBackward) {
	clear(a.DQ.F32())
	clear(a.DK.F32())
	clear(a.DV.F32())
	vs, dvs := a.V.F32(), a.DV.F32()
	for query := range a.B * a.T {
		p, dp := a.Probabilities.F32()[query*a.T:][:a.T], a.DProbabilities.F32()[query*a.T:][:a.T]
		softmaxBackward(dp, p)
		qs, dqs := a.Q.F32()[query*a.N:][:a.N], a.DQ.F32()[query*a.N:][:a.N]
		for key, ds := range dp {
			at := (query/a.T*a.T + key) * a.N
			ks, dks := a.K.F32()[at:][:a.N], a.DK.F32()[at:][:a.N]
			for n := range qs {
				squashed := float32(tanh(float64(qs[n] + ks[n])))
				slope := ds * vs[n] * (1 - float32(squashed*squashed))
				dqs[n] += slope
				dks[n] += slope
				dvs[n] += float32(ds * squashed)
			}
		}
	}
}

// softmaxBackward turns the gradient of probabilities into that of scores: ds = p (dp - sum p dp).
func softmaxBackward(dp, p []float32) {
	mean := dot(p, dp)
	for j := range dp {
		dp[j] = p[j] * (dp[j] - mean)
	}
}

// weightNorm runs device.WeightNorm.
func (d *Device) weightNorm(o *device.WeightNorm) {
	scale := float32(float64(o.Length.F32()[0]) / math.Sqrt(inner(o.Direction, o.Direction)))
	for i, x := range o.Direction.F32() {
		o.V.F32()[i] = scale * x
	}
}

// weightNormBackward runs device.WeightNormBackward.
func (d *Device) weightNormBackward(o *device.WeightNormBackward) {
	norm := math.Sqrt(inner(o.Direction, o.Direction))
	along := inner(o.DV, o.Direction) / norm
	o.DLength.F32()[0] += float32(along)
	scale, back := float32(float64(o.Length.F32()[0])/norm), float32(along/norm)
	for i, x := range o.Direction.F32() {
		o.DDirection.F32()[i] += float32(scale * (o.DV.F32()[i] - float32(back*x)))
	}
}

// copyColumns runs device.CopyColumns.
func (d *Device) copyColumns(o *device.CopyColumns) {
	c := o.Columns
	for r := range c.Rows {
		to, from := o.Y.F32()[r*c.YStride:][:c.Columns], o.X.F32()[r*c.XStride:][:c.Columns]
		if c.Add {
			add(to, from)
		} else {
			copy(to, from)
		}
	}
}
