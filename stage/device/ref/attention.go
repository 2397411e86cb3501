package ref

import (
	"math"

	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/flat"
)

// head views one head of one sample in a tensor that interleaves them: row t is data[t*stride:][:width].
type head struct {
	data   []float32
	stride int
	width  int
}

func (h head) row(t int) []float32 { return h.data[t*h.stride:][:h.width] }

// headOf is head h of sample b of x, whose rows lie stride apart.
func headOf(x []float32, a device.AttentionShape, stride, b, h int) head {
	return head{data: x[b*a.T*stride+h*a.S:], stride: stride, width: a.S}
}

// seen is how many positions from the first on the query at position t may see.
func seen(a device.AttentionShape, t int) int {
	if a.Bidirectional {
		return a.T
	}
	return t + 1
}

// maskOf is the mask of sample b, nil when there is none.
func maskOf(a device.AttentionShape, b int) []int32 {
	if a.Mask.Absent() {
		return nil
	}
	return a.Mask.I32()[b*a.T:][:a.T]
}

// attention runs device.Attention (Vaswani et al. 2017, equation 1). It holds one row of scores at a time. The backward
// computes the probabilities again from the logarithm of every row's sum (Dao et al. 2022, section 3.1).
func (d *Device) attention(x *device.Attention) {
	a := x.WithDefaults()
	qs, ks, vs, outs := d.read(0, x.Q), d.read(1, x.K), d.read(2, x.V), d.result(3, x.Out)
	lse := optional(x.Saved)
	d.scores = grow(d.scores, a.T)
	for b := range a.B {
		for h := range a.H {
			group := h / (a.H / a.KV)
			qh, kh, vh := headOf(qs, a, a.QStride, b, h), headOf(ks, a, a.KVStride, b, group), headOf(vs, a, a.KVStride, b, group)
			o := headOf(outs, a, a.H*a.S, b, h)
			for t := range a.T {
				p := d.scores[:seen(a, t)]
				scoreRow(p, qh.row(t), kh, a.First(t), maskOf(a, b))
				sum := softmax(p)
				if lse != nil {
					lse[(b*a.H+h)*a.T+t] = sum
				}
				dropScores(p, a, b, h, t)
				weighRow(o.row(t), p, vh)
			}
		}
	}
	d.finish(3, x.Out)
}

// dropScores drops elements of a query's row of probabilities, or of their gradients.
func dropScores(p []float32, a device.AttentionShape, b, h, t int) {
	if a.Dropout.Rate != 0 {
		dropRow(p, a.Dropout, a.Dropout.First+((b*a.H+h)*a.T+t)*a.T)
	}
}

// scoreRow sets p[j] = q k_j / sqrt(S), and -Inf before the first key of the window and where the mask hides key j.
func scoreRow(p, q []float32, k head, first int, mask []int32) {
	scale := float32(1 / math.Sqrt(float64(len(q))))
	for j := range p {
		if j < first || mask != nil && mask[j] == 0 {
			p[j] = float32(math.Inf(-1))
			continue
		}
		p[j] = dot(q, k.row(j)) * scale
	}
}

// softmax turns scores into probabilities and returns the logarithm of the sum of exponentials: +Inf, and probabilities of 0,
// when all scores are -Inf.
func softmax(p []float32) float32 {
	largest := p[0]
	for _, v := range p {
		largest = max(largest, v)
	}
	lse := float32(math.Inf(1))
	if !math.IsInf(float64(largest), -1) {
		var sum float64
		for _, v := range p {
			sum += exp(float64(v) - float64(largest))
		}
		lse = float32(float64(largest) + log(sum))
	}
	probabilities(p, lse)
	return lse
}

// probabilities sets p[j] = exp(p[j] - lse).
func probabilities(p []float32, lse float32) {
	for j, v := range p {
		p[j] = float32(exp(float64(v) - float64(lse)))
	}
}

// weighRow sets o to the sum of p[j] v_j.
func weighRow(o, p []float32, v head) {
	clear(o)
	for j, weight := range p {
		flat.Axpy(o, weight, v.row(j))
	}
}

// attentionBackward runs device.AttentionBackward (Dao et al. 2022, appendix B.2): with P the probabilities and
// D_t = dout_t out_t, dS = P (dout v^T - D), dq = dS k / sqrt(S), dk = dS^T q / sqrt(S), dv = P^T dout; dk and dv are sums
// over the query heads that share a head of keys. With dropout, dout v^T and the P of dv are what is left of them; out, and
// with it D, is already.
func (d *Device) attentionBackward(o *device.AttentionBackward) {
	a := o.WithDefaults()
	d.scores, d.dscores = grow(d.scores, a.T), grow(d.dscores, a.T)
	qs, ks, vs, outs, douts := d.read(0, o.Q), d.read(1, o.K), d.read(2, o.V), d.read(3, o.Out), d.read(4, o.DOut)
	dqs, dks, dvs := d.result(5, o.DQ), d.result(6, o.DK), d.result(7, o.DV)
	for b := range a.B {
		for h := range a.H {
			group := h / (a.H / a.KV)
			x := headBackward{
				q: headOf(qs, a, a.QStride, b, h), k: headOf(ks, a, a.KVStride, b, group), v: headOf(vs, a, a.KVStride, b, group),
				dq: headOf(dqs, a, a.QStride, b, h), dk: headOf(dks, a, a.KVStride, b, group), dv: headOf(dvs, a, a.KVStride, b, group),
				o: headOf(outs, a, a.H*a.S, b, h), do: headOf(douts, a, a.H*a.S, b, h),
				lse: o.Saved.F32()[(b*a.H+h)*a.T:][:a.T], sample: b, head: h,
			}
			for t := range a.T {
				clear(x.dq.row(t))
				if h%(a.H/a.KV) == 0 {
					clear(x.dk.row(t))
					clear(x.dv.row(t))
				}
			}
			d.headBackward(x, a, maskOf(a, b))
		}
	}
	d.finishRows(5, o.DQ, a.B*a.T, a.QStride, a.H*a.S)
	d.finishRows(6, o.DK, a.B*a.T, a.KVStride, a.KV*a.S)
	d.finishRows(7, o.DV, a.B*a.T, a.KVStride, a.KV*a.S)
}

// headBackward holds what the backward of one head of one sample reads and writes, each (T,S), and lse (T).
type headBackward struct {
	q, k, v, o, do, dq, dk, dv head
	lse                        []float32
	sample, head               int
}

func (d *Device) headBackward(x headBackward, a device.AttentionShape, mask []int32) {
	scale := float32(1 / math.Sqrt(float64(x.q.width)))
	for t, lse := range x.lse {
		n := seen(a, t)
		p, ds := d.scores[:n], d.dscores[:n]
		q, do, dq := x.q.row(t), x.do.row(t), x.dq.row(t)
		scoreRow(p, q, x.k, a.First(t), mask)
		probabilities(p, lse)
		mean := dot(do, x.o.row(t))
		for j := range ds {
			ds[j] = dot(do, x.v.row(j))
		}
		dropScores(ds, a, x.sample, x.head, t)
		for j := range ds {
			ds[j] = p[j] * (ds[j] - mean) * scale
			flat.Axpy(x.dk.row(j), ds[j], q)
			flat.Axpy(dq, ds[j], x.k.row(j))
		}
		dropScores(p, a, x.sample, x.head, t)
		for j := range p {
			flat.Axpy(x.dv.row(j), p[j], do)
		}
	}
}
