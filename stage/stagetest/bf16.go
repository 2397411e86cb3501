package stagetest

import (
	"math"

	"github.com/avgpipe/avgpipe/stage/device"
)

// eachType calls visit with what makes an operand F32, and with what makes it BF16.
func eachType(visit func(kind string, of func(tensor) tensor)) {
	visit("", func(x tensor) tensor { return x })
	visit(" of BF16", tensor.brain)
}

// typedProducts gives A, B and C every combination of types. C in BF16 is compared after rounding, so a value near the middle
// of two elements may be one off.
func typedProducts(c *comparison) {
	for _, size := range productShapes {
		for types := 1; types < 8; types++ {
			for flags := range 4 {
				m := device.Product{M: size[0], N: size[1], K: size[2], TransA: flags&1 != 0, TransB: flags&2 != 0}
				operands := []tensor{c.out("c", m.M*m.N), c.in("a", m.M*m.K), c.in("b", m.K*m.N), c.in("bias", m.N)}
				for i := range 3 {
					if types>>i&1 != 0 {
						operands[i] = operands[i].brain()
					}
				}
				tolerance := product * math.Sqrt(float64(m.K))
				if operands[0].bf16 {
					tolerance = rounding
				} else if m.Accumulate = m.TransA; m.Accumulate {
					operands[3] = tensor{name: "no bias"}
				}
				where := shape("M=%d N=%d K=%d TransA=%v TransB=%v Accumulate=%v BF16: c=%v a=%v b=%v", m.M, m.N, m.K, m.TransA, m.TransB,
					m.Accumulate, operands[0].bf16, operands[1].bf16, operands[2].bf16)
				c.compare("MatMul of BF16", where, tolerance, operands, func(d device.Device, mems []device.Mem) {
					m.Bias = mems[3]
					d.Do(&device.MatMul{C: mems[0], A: mems[1], B: mems[2], Product: m})
				})
			}
		}
	}
}

// conversions covers every element-wise operation that takes BF16; all are exact but GELU.
func conversions(c *comparison) {
	for _, n := range lengths {
		where := shape("n=%d", n)
		x := c.in("x", n)
		copy(x.floats, []float32{0, 1e-40, 3e38, -1, 1 + 1.0/256, 1 + 3.0/256, -1e-39, float32(math.Inf(-1)), float32(math.NaN())})
		c.compare("Convert to BF16", where, exact, []tensor{c.out("y", n).brain(), x}, func(d device.Device, m []device.Mem) {
			d.Do(&device.Copy{Y: m[0], X: m[1]})
		})
		c.compare("Convert from BF16", where, exact, []tensor{c.out("y", n), c.in("x", n).brain()}, func(d device.Device, m []device.Mem) {
			d.Do(&device.Copy{Y: m[0], X: m[1]})
		})
		for types := 1; types < 8; types++ {
			operands := []tensor{c.out("out", n), c.in("a", n), c.in("b", n)}
			for i := range operands {
				if types>>i&1 != 0 {
					operands[i] = operands[i].brain()
				}
			}
			c.compare("Add of BF16", where, exact, operands, func(d device.Device, m []device.Mem) { d.Do(&device.Add{Out: m[0], A: m[1], B: m[2]}) })
		}
		wide := tensor{name: "x", floats: c.normal(n, 0, 3)}.brain()
		c.compare("GELU of BF16", where, rounding, []tensor{c.out("y", n).brain(), wide}, func(d device.Device, m []device.Mem) {
			d.Do(&device.Unary{Y: m[0], X: m[1], Function: device.GELU})
		})
		operands := []tensor{c.out("dx", n).brain(), c.in("dy", n).brain(), wide}
		c.compare("GELUBackward of BF16", where, rounding, operands, func(d device.Device, m []device.Mem) {
			d.Do(&device.UnaryBackward{DX: m[0], DY: m[1], X: m[2], Function: device.GELU})
		})
	}
}

// typedRows covers what reduces rows or columns of BF16 elements.
func typedRows(c *comparison) {
	for _, size := range [][2]int{{1, 2}, {3, 16}, {5, 33}, {17, 100}, {9, 769}} {
		rows, columns := size[0], size[1]
		n, where := rows*columns, shape("R=%d C=%d", rows, columns)
		c.compare("SumRows of BF16", where, reduction, []tensor{c.out("sum", columns), c.in("x", n).brain()}, func(d device.Device, m []device.Mem) {
			d.Do(&device.SumRows{Sum: m[0], X: m[1]})
		})
		const epsilon = 1e-5
		x, weight := c.in("x", n), c.in("weight", columns)
		forward := []tensor{c.out("y", n).brain(), c.out("mean", rows), c.out("rstd", rows), x, weight, c.in("bias", columns)}
		c.compare("LayerNorm to BF16", where, rounding, forward, func(d device.Device, m []device.Mem) {
			d.Do(&device.Norm{Y: m[0], Mean: m[1], Rstd: m[2], X: m[3], Weight: m[4], Bias: m[5], Epsilon: epsilon})
		})
		means, rstds := statistics(x.floats, rows, columns, epsilon)
		dy := c.in("dy", n).brain()
		backward := []tensor{c.out("dx", n), dy, x, means, rstds, weight}
		c.compare("LayerNormBackward of BF16", where, reduction, backward, func(d device.Device, m []device.Mem) {
			d.Do(&device.NormBackward{DX: m[0], DY: m[1], X: m[2], Mean: m[3], Rstd: m[4], Weight: m[5]})
		})
		weights := []tensor{c.out("dweight", columns), c.out("dbias", columns), dy, x, means, rstds}
		c.compare("LayerNormBackwardWeight of BF16", where, reduction, weights, func(d device.Device, m []device.Mem) {
			d.Do(&device.NormBackwardWeight{DWeight: m[0], DBias: m[1], DY: m[2], X: m[3], Mean: m[4], Rstd: m[5]})
		})
	}
}

// typedAttention rounds every operand but the mask.
func typedAttention(c *comparison) {
	for _, a := range attentionShapes {
		x := c.attentionCase(a, a.B > 1, 1)
		n := x.B * x.T * x.H * x.S
		operands := []tensor{c.out("out", n).brain(), x.q.brain(), x.k.brain(), x.v.brain(), x.mask}
		c.compare("Attention of BF16", x.String(), rounding, operands, func(d device.Device, m []device.Mem) {
			a := x.AttentionShape
			a.Mask = m[4]
			d.Do(&device.Attention{Out: m[0], Q: m[1], K: m[2], V: m[3], AttentionShape: a})
		})
		operands = append(operands, c.in("dout", n).brain(), c.out("dq", len(x.q.floats)).brain(), c.out("dk", len(x.k.floats)).brain(),
			c.out("dv", len(x.v.floats)).brain())
		c.compare("AttentionBackward of BF16", x.String(), 2*rounding, operands, func(d device.Device, m []device.Mem) {
			a := x.AttentionShape
			a.Mask = m[4]
			saved := c.alloc(d, device.F32, a.Saved())
			d.Do(&device.Attention{Out: m[0], Saved: saved, Q: m[1], K: m[2], V: m[3], AttentionShape: a})
			d.Do(&device.AttentionBackward{
				DQ: m[6], DK: m[7], DV: m[8], DOut: m[5], Q: m[1], K: m[2], V: m[3], Out: m[0], Saved: saved, AttentionShape: a,
			})
			d.Free(saved)
		})
	}
}
