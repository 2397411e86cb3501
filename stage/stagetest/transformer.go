package stagetest

import (
	"math"

	"github.com/avgpipe/avgpipe/stage/device"
)

// rounding is the tolerance for a BF16 result: a rounding of a rounding error's size more than the F32 one, where the value
// lies near the middle of two elements.
const rounding = 1.0 / 128

// asTyped runs a comparison with F32 operands and, the named ones rounded, with BF16 ones.
func asTyped(c *comparison, op, where string, tolerance float64, operands []tensor, typed int, call func(device.Device, []device.Mem)) {
	c.Helper()
	c.compare(op, where, tolerance, operands, call)
	brains := append([]tensor(nil), operands...)
	for i := range typed {
		brains[i] = brains[i].brain()
	}
	c.compare(op+" of BF16", where, rounding, brains, call)
}

func rmsNorm(c *comparison) {
	for _, size := range [][2]int{{1, 1}, {1, 7}, {3, 16}, {5, 33}, {2, 100}, {17, 512}, {4, 769}} {
		rows, columns := size[0], size[1]
		n, where := rows*columns, shape("R=%d C=%d", rows, columns)
		const epsilon = 1e-6
		x, weight := c.in("x", n), c.in("weight", columns)
		forward := []tensor{c.out("y", n), c.out("rstd", rows), x, weight}
		asTyped(c, "RMSNorm", where, reduction, forward, 1, func(d device.Device, m []device.Mem) {
			d.Do(&device.Norm{Y: m[0], Rstd: m[1], X: m[2], Weight: m[3], Epsilon: epsilon})
		})
		rstd := tensor{name: "rstd", floats: make([]float32, rows)}
		for r := range rows {
			sum := 0.0
			for _, v := range x.floats[r*columns : (r+1)*columns] {
				sum += float64(v) * float64(v)
			}
			rstd.floats[r] = float32(1 / math.Sqrt(sum/float64(columns)+epsilon))
		}
		for _, plus := range []tensor{{name: "plus"}, c.in("plus", n)} {
			backward := []tensor{c.in("dy", n), c.out("dx", n), x, rstd, weight, plus}
			with := where + shape(" Plus=%v", len(plus.floats) > 0)
			asTyped(c, "RMSNormBackward", with, reduction, backward, 1, func(d device.Device, m []device.Mem) {
				d.Do(&device.NormBackward{DX: m[1], DY: m[0], X: m[2], Rstd: m[3], Weight: m[4], Plus: m[5]})
			})
		}
		inPlace := []tensor{c.out("dy", n), x, rstd, weight}
		c.compare("RMSNormBackward in place", where, reduction, inPlace, func(d device.Device, m []device.Mem) {
			d.Do(&device.NormBackward{DX: m[0], DY: m[0], X: m[1], Rstd: m[2], Weight: m[3]})
		})
		weights := []tensor{c.in("dy", n), c.out("dweight", columns), x, rstd}
		asTyped(c, "RMSNormBackwardWeight", where, reduction, weights, 1, func(d device.Device, m []device.Mem) {
			d.Do(&device.NormBackwardWeight{DWeight: m[1], DY: m[0], X: m[2], Rstd: m[3]})
		})
	}
}

func rotation(c *comparison) {
	for _, o := range []device.Rotation{
		{B: 1, T: 1, Heads: 1, S: 2, Theta: 10000},
		{B: 2, T: 5, Heads: 3, S: 6, Theta: 10000},
		{B: 1, T: 33, Heads: 2, S: 64, Theta: 500000},
		{B: 2, T: 17, Heads: 1, S: 34, Theta: 100, Inverse: true},
		{B: 1, T: 40, Heads: 2, S: 64, Theta: 500000, Inverse: true},
		{B: 2, T: 1, Past: 39, Heads: 2, S: 64, Theta: 500000},
		{B: 1, T: 7, Past: 90, Heads: 3, S: 6, Theta: 10000},
		{B: 1, T: 33, Heads: 2, S: 64, Theta: 500000, Stretch: device.Stretch{Factor: 4}},
		{B: 1, T: 33, Heads: 2, S: 64, Theta: 500000, Stretch: device.Stretch{Factor: 8, Original: 16, Low: 1, High: 4}},
	} {
		n, where := o.B*o.T*o.Heads*o.S, shape("%+v", o)
		asTyped(c, "Rotate", where, exact, []tensor{c.out("y", n), c.in("x", n)}, 2, func(d device.Device, m []device.Mem) {
			d.Do(&device.Rotate{Y: m[0], X: m[1], Rotation: o})
		})
		c.compare("Rotate in place", where, exact, []tensor{c.out("x", n)}, func(d device.Device, m []device.Mem) {
			d.Do(&device.Rotate{Y: m[0], X: m[0], Rotation: o})
		})
	}
	rotationKeepsDistances(c)
}

// rotationKeepsDistances: the inner product of a query and a key depends on how far apart they are, not on where (Su et al.
// 2021, equation 16), position 0 is not turned, and the inverse turns back.
func rotationKeepsDistances(c *comparison) {
	const t, s = 9, 8
	o := device.Rotation{B: 1, T: t, Heads: 1, S: s, Theta: 10000}
	q, k := c.normal(s, 0, 1), c.normal(s, 0, 1)
	everywhere := func(row []float32) tensor {
		x := tensor{name: "x", result: true}
		for range t {
			x.floats = append(x.floats, row...)
		}
		return x
	}
	turned := func(x tensor, o device.Rotation) []float32 {
		bits := c.run(c.dev, 0, "Rotate", []tensor{x}, func(d device.Device, m []device.Mem) { d.Do(&device.Rotate{Y: m[0], X: m[0], Rotation: o}) })[0]
		out := make([]float32, len(bits))
		for i, b := range bits {
			out[i] = float32(value(b))
		}
		return out
	}
	queries, keys := turned(everywhere(q), o), turned(everywhere(k), o)
	at := func(i, j int) float64 { return dot(queries[i*s:(i+1)*s], keys[j*s:(j+1)*s]) }
	for i := range t - 3 {
		if a, b := at(i+3, i), at(3, 0); math.Abs(a-b) > 1e-5 {
			c.Errorf("the product of positions %d and %d is %v, of 3 and 0 %v", i+3, i, a, b)
		}
	}
	if math.Abs(at(3, 0)-at(0, 0)) < 1e-3 {
		c.Error("the product does not depend on the distance")
	}
	back := o
	back.Inverse = true
	for i, v := range turned(tensor{name: "x", floats: queries, result: true}, back) {
		if math.Abs(float64(v-q[i%s])) > 1e-6 {
			c.Errorf("element %d comes back as %v, was %v", i, v, q[i%s])
		}
		if i < s && queries[i] != q[i] {
			c.Errorf("element %d at position 0 was turned", i)
		}
	}
}

func gates(c *comparison) {
	for _, n := range lengths {
		where := shape("n=%d", n)
		x := tensor{name: "x", floats: c.normal(n, 0, 3)}
		copy(x.floats, []float32{0.5, -100, 100, 0, -8, 8, -1e-20, 30, -30})
		asTyped(c, "SwiGLU", where, function, []tensor{c.out("y", n), x, c.in("up", n)}, 3, func(d device.Device, m []device.Mem) {
			d.Do(&device.SwiGLU{Y: m[0], Gate: m[1], Up: m[2]})
		})
		backward := []tensor{c.out("dgate", n), c.out("dup", n), c.in("dy", n), x, c.in("up", n)}
		asTyped(c, "SwiGLUBackward", where, function, backward, 5, func(d device.Device, m []device.Mem) {
			d.Do(&device.SwiGLUBackward{DGate: m[0], DUp: m[1], DY: m[2], Gate: m[3], Up: m[4]})
		})
		for i, inPlace := range [][]tensor{{c.out("dy", n), c.out("dup", n)}, {c.out("dgate", n), c.out("dy", n)}} {
			c.compare("SwiGLUBackward in place", where, function, append(inPlace, x, c.in("up", n)), func(d device.Device, m []device.Mem) {
				d.Do(&device.SwiGLUBackward{DGate: m[0], DUp: m[1], DY: m[i], Gate: m[2], Up: m[3]})
			})
		}
		asTyped(c, "GELUErf", where, function, []tensor{c.out("y", n), x}, 2, func(d device.Device, m []device.Mem) {
			d.Do(&device.Unary{Y: m[0], X: m[1], Function: device.GELUErf})
		})
		asTyped(c, "GELUErfBackward", where, function, []tensor{c.out("dx", n), c.in("dy", n), x}, 3, func(d device.Device, m []device.Mem) {
			d.Do(&device.UnaryBackward{DX: m[0], DY: m[1], X: m[2], Function: device.GELUErf})
		})
		c.compare("GELUErfBackward in place", where, function, []tensor{c.out("dy", n), x}, func(d device.Device, m []device.Mem) {
			d.Do(&device.UnaryBackward{DX: m[0], DY: m[0], X: m[1], Function: device.GELUErf})
		})
		c.compare("Tanh", where, function, []tensor{c.out("y", n), x}, func(d device.Device, m []device.Mem) {
			d.Do(&device.Unary{Y: m[0], X: m[1], Function: device.Tanh})
		})
		c.compare("TanhBackward", where, exact, []tensor{c.out("dx", n), c.in("dy", n), c.in("y", n)}, func(d device.Device, m []device.Mem) {
			d.Do(&device.UnaryBackward{DX: m[0], DY: m[1], X: m[2], Function: device.Tanh})
		})
	}
}

func addRows(c *comparison) {
	for _, size := range [][3]int{{1, 1, 1}, {6, 5, 4}, {51, 33, 10}, {16, 64, 3}} {
		rows, width, vocabulary := size[0], size[1], size[2]
		operands := []tensor{c.out("y", rows*width), c.in("table", vocabulary*width), c.ids("ids", rows, vocabulary)}
		c.compare("AddRows", shape("R=%d D=%d V=%d", rows, width, vocabulary), exact, operands, func(d device.Device, m []device.Mem) {
			d.Do(&device.Embed{Out: m[0], Tokens: m[1], IDs: m[2], Add: true})
		})
	}
}

func transformerRules(c *comparison) {
	cacheRules(c)
	d := &Recorder{Device: c.dev}
	x, y, z := c.alloc(d, device.F32, 64), c.alloc(d, device.F32, 64), c.alloc(d, device.F32, 64)
	four, brains, ids := c.alloc(d, device.F32, 4), c.alloc(d, device.BF16, 64), c.alloc(d, device.I32, 4)
	o := device.Rotation{B: 2, T: 2, Heads: 2, S: 8, Theta: 10000}
	for name, call := range map[string]func(){
		"RMSNorm": func() {
			d.Do(&device.Norm{Y: y, Rstd: four, X: x, Weight: four, Epsilon: 1e-5})
		},
		"RMSNorm of another width":   func() { d.Do(&device.Norm{Y: y, Rstd: four, X: x, Weight: four, Epsilon: 1e-5}) },
		"RMSNormBackward without dy": func() { d.Do(&device.NormBackward{DX: x, X: y, Rstd: four, Weight: four}) },
		"RMSNormBackwardWeight":      func() { d.Do(&device.NormBackwardWeight{DWeight: x, DY: y, X: z, Rstd: four}) },
		"Rotate of another length":   func() { d.Do(&device.Rotate{Y: x, X: y.Slice(0, 32), Rotation: o}) },
		"Rotate from before the start": func() {
			d.Do(&device.Rotate{Y: x, X: y, Rotation: device.Rotation{B: 1, T: 1, Past: -1, Heads: 1, S: 64, Theta: 1}})
		},
		"Rotate of two types": func() { d.Do(&device.Rotate{Y: x, X: brains, Rotation: o}) },
		"Rotate of an odd width": func() {
			d.Do(&device.Rotate{Y: x, X: y, Rotation: device.Rotation{B: 1, T: 1, Heads: 1, S: 64 - 1, Theta: 1}})
		},
		"SwiGLU of two types":          func() { d.Do(&device.SwiGLU{Y: x, Gate: brains, Up: y}) },
		"SwiGLUBackward of integers":   func() { d.Do(&device.SwiGLUBackward{DGate: ids, DUp: ids, DY: ids, Gate: ids, Up: ids}) },
		"GELUErf of another length":    func() { d.Do(&device.Unary{Y: x, X: four, Function: device.GELUErf}) },
		"GELUErfBackward of two types": func() { d.Do(&device.UnaryBackward{DX: x, DY: y, X: brains, Function: device.GELUErf}) },
		"Tanh of BF16":                 func() { d.Do(&device.Unary{Y: brains, X: brains, Function: device.Tanh}) },
		"TanhBackward":                 func() { d.Do(&device.UnaryBackward{DX: x, DY: y, X: four, Function: device.Tanh}) },
		"Embed beyond the positions": func() {
			d.Do(&device.Embed{Out: x, Tokens: y, Positions: z, IDs: ids, T: 4, Past: 1})
		},
		"AddRows of another width": func() { d.Do(&device.Embed{Out: x, Tokens: y.Slice(0, 60), IDs: ids, Add: true}) },
	} {
		c.refuses(name, call)
	}
	sixteen, narrow := c.alloc(d, device.F32, 16), c.alloc(d, device.I32, 4)
	d.Upload(narrow, device.IntBytes([]int32{0, 1, 2, 4}))
	c.refusesID("AddRows beyond the table", func() { d.Do(&device.Embed{Out: x, Tokens: y, IDs: narrow, Add: true}) })
	for name, call := range map[string]func(){
		"RMSNorm": func() {
			d.Do(&device.Norm{Y: brains, Rstd: four, X: x, Weight: sixteen, Epsilon: 1e-5})
			d.Do(&device.NormBackward{DX: y, DY: brains, X: x, Rstd: four, Weight: sixteen})
			d.Do(&device.NormBackwardWeight{DWeight: sixteen, DY: brains, X: x, Rstd: four})
		},
		"Rotate": func() { d.Do(&device.Rotate{Y: brains, X: brains, Rotation: o}) },
		"SwiGLU": func() {
			d.Do(&device.SwiGLU{Y: brains, Gate: brains, Up: brains})
			d.Do(&device.SwiGLUBackward{DGate: x, DUp: y, DY: z, Gate: x, Up: y})
		},
		"GELUErf": func() {
			d.Do(&device.Unary{Y: brains, X: brains, Function: device.GELUErf})
			d.Do(&device.UnaryBackward{DX: brains, DY: brains, X: brains, Function: device.GELUErf})
		},
		"Tanh": func() {
			d.Do(&device.Unary{Y: x, X: y, Function: device.Tanh})
			d.Do(&device.UnaryBackward{DX: x, DY: y, X: z, Function: device.Tanh})
		},
		"AddRows": func() { d.Do(&device.Embed{Out: x, Tokens: y, IDs: ids, Add: true}) },
	} {
		d.AllocatesNothing(c.T, name, call)
	}
}
