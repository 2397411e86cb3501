package ref

import (
	"math"

	"github.com/avgpipe/avgpipe/stage/device"
)

// AttentionSaved implements device.Device: the logarithm of every row's sum of exponentials (B,H,T). The backward pass
// recomputes the probabilities from it (Dao et al. 2022, section 3.1).
func (d *Device) AttentionSaved(a device.Attention) int { return a.B * a.H * a.T }

// head views one head of one sample in a tensor that interleaves them: row t is data[t*stride:][:width].
type head struct {
	data   []float32
	stride int
	width  int
}

func (h head) row(t int) []float32 { return h.data[t*h.stride:][:h.width] }

// headOf is head h of sample b of x (B,T,parts*D), in the given part.
func headOf(x []float32, a device.Attention, parts, part, b, h int) head {
	stride := parts * a.H * a.S
	return head{data: x[b*a.T*stride+part*a.H*a.S+h*a.S:], stride: stride, width: a.S}
}

// Attention implements device.Device (Vaswani et al. 2017, equation 1, causal). It holds one row of scores at a time.
func (d *Device) Attention(out, saved, qkv device.Mem, a device.Attention) {
	a.CheckForward(out, saved, qkv, d.AttentionSaved(a))
	var lse []float32
	if !saved.Absent() {
		lse = saved.F32()
	}
	d.scores = grow(d.scores, a.T)
	for b := range a.B {
		for h := range a.H {
			q, k, v := headOf(qkv.F32(), a, 3, 0, b, h), headOf(qkv.F32(), a, 3, 1, b, h), headOf(qkv.F32(), a, 3, 2, b, h)
			o := headOf(out.F32(), a, 1, 0, b, h)
			for t := range a.T {
				p := d.scores[:t+1]
				scoreRow(p, q.row(t), k)
				sum := softmax(p)
				if lse != nil {
					lse[(b*a.H+h)*a.T+t] = sum
				}
				weighRow(o.row(t), p, v)
			}
		}
	}
}

// scoreRow sets p[j] = q k_j / sqrt(S).
func scoreRow(p, q []float32, k head) {
	scale := float32(1 / math.Sqrt(float64(len(q))))
	for j := range p {
		p[j] = dot(q, k.row(j)) * scale
	}
}

// softmax turns scores into probabilities and returns the logarithm of the sum of exponentials.
func softmax(p []float32) float32 {
	largest := p[0]
	for _, v := range p {
		largest = max(largest, v)
	}
	var sum float64
	for _, v := range p {
		sum += exp(float64(v) - float64(largest))
	}
	lse := float32(float64(largest) + log(sum))
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
		axpy(o, weight, v.row(j))
	}
}

// AttentionBackward implements device.Device (Dao et al. 2022, appendix B.2): with P the probabilities and
// D_t = dout_t out_t, dS = P (dout v^T - D), dq = dS k / sqrt(S), dk = dS^T q / sqrt(S), dv = P^T dout.
func (d *Device) AttentionBackward(dqkv, dout, qkv, out, saved device.Mem, a device.Attention) {
	a.CheckBackward(dqkv, dout, qkv, out, saved, d.AttentionSaved(a))
	d.scores, d.dscores = grow(d.scores, a.T), grow(d.dscores, a.T)
	d.Zero(dqkv)
	for b := range a.B {
		for h := range a.H {
			d.headBackward(headBackward{
				q: headOf(qkv.F32(), a, 3, 0, b, h), k: headOf(qkv.F32(), a, 3, 1, b, h), v: headOf(qkv.F32(), a, 3, 2, b, h),
				dq: headOf(dqkv.F32(), a, 3, 0, b, h), dk: headOf(dqkv.F32(), a, 3, 1, b, h),
				dv: headOf(dqkv.F32(), a, 3, 2, b, h),
				o:  headOf(out.F32(), a, 1, 0, b, h), do: headOf(dout.F32(), a, 1, 0, b, h),
				lse: saved.F32()[(b*a.H+h)*a.T:][:a.T],
			})
		}
	}
}

// headBackward holds what the backward of one head of one sample reads and writes, each (T,S), and lse (T).
type headBackward struct {
	q, k, v, o, do, dq, dk, dv head
	lse                        []float32
}

func (d *Device) headBackward(x headBackward) {
	scale := float32(1 / math.Sqrt(float64(x.q.width)))
	for t, lse := range x.lse {
		p, ds := d.scores[:t+1], d.dscores[:t+1]
		q, do, dq := x.q.row(t), x.do.row(t), x.dq.row(t)
		scoreRow(p, q, x.k)
		probabilities(p, lse)
		mean := dot(do, x.o.row(t))
		for j := range ds {
			ds[j] = p[j] * (dot(do, x.v.row(j)) - mean) * scale
			axpy(x.dv.row(j), p[j], do)
			axpy(x.dk.row(j), ds[j], q)
			axpy(dq, ds[j], x.k.row(j))
		}
	}
}
