package stagetest

import (
	"math"

	"github.com/avgpipe/avgpipe/stage/device"
)

// Tolerances of the contract (see device.Device), relative to the largest magnitude of a result.
const (
	exact     = 0
	reduction = 1e-5
	function  = 2e-6 // GELU
	product   = 1e-5 // times the square root of the summed length
)

// lengths covers one, the tails of every vector width, and several thousand.
var lengths = []int{1, 2, 3, 7, 8, 15, 16, 17, 33, 64, 127, 1000, 5003}

func elementwise(c *comparison) {
	for _, n := range lengths {
		where := shape("n=%d", n)
		c.compare("Add", where, exact, []tensor{c.out("out", n), c.in("a", n), c.in("b", n)}, func(d device.Device, m []device.Mem) {
			d.Do(&device.Add{Out: m[0], A: m[1], B: m[2]})
		})
		c.compare("Add in place", where, exact, []tensor{c.out("out", n), c.in("b", n)}, func(d device.Device, m []device.Mem) {
			d.Do(&device.Add{Out: m[0], A: m[0], B: m[1]})
		})
		c.compare("Axpy", where, exact, []tensor{c.out("y", n), c.in("x", n)}, func(d device.Device, m []device.Mem) {
			d.Do(&device.Axpy{Y: m[0], A: 1.0 / 3, X: m[1]})
		})
		c.compare("Lerp", where, exact, []tensor{c.out("y", n), c.in("x", n)}, func(d device.Device, m []device.Mem) {
			d.Do(&device.Lerp{Y: m[0], A: 1.0 / 3, X: m[1]})
		})
		c.compare("Scale and Mul", where, exact, []tensor{c.out("y", n), c.in("x", n)}, func(d device.Device, m []device.Mem) {
			d.Do(&device.Scale{X: m[0], A: 1.0 / 3})
			d.Do(&device.Mul{Y: m[0], X: m[1]})
		})
	}
}

// productShapes are M, N, K: ones, odd sizes, tails of register and of cache blocks, and shapes of a small model.
var productShapes = [][3]int{
	{1, 1, 1},
	{1, 7, 5},
	{3, 1, 9},
	{9, 3, 1},
	{17, 33, 65},
	{64, 96, 32},
	{5, 130, 3},
	{128, 64, 256},
	{33, 257, 100},
	{2, 600, 48},
	{70, 16, 512},
	{800, 70, 250},
	{40, 150, 330}, // several blocks of both dimensions of B
	{1, 100, 75},   // few rows: vectors and a rest of both dimensions, and groups of rows
	{3, 37, 40},
	{4, 64, 33},
	{7, 50, 18},
	{8, 21, 64},
}

func products(c *comparison) {
	for _, size := range productShapes {
		for flags := range 12 {
			m := device.Product{M: size[0], N: size[1], K: size[2], TransA: flags&1 != 0, TransB: flags&2 != 0, Accumulate: flags/4 == 1}
			bias := tensor{name: "bias"}
			if flags/4 == 2 {
				bias = c.in("bias", m.N)
			}
			where := shape("M=%d N=%d K=%d TransA=%v TransB=%v Accumulate=%v Bias=%v", m.M, m.N, m.K, m.TransA, m.TransB,
				m.Accumulate, flags/4 == 2)
			operands := []tensor{c.out("c", m.M*m.N), c.in("a", m.M*m.K), c.in("b", m.K*m.N), bias}
			c.compare("MatMul", where, product*math.Sqrt(float64(m.K)), operands, func(d device.Device, mems []device.Mem) {
				m.Bias = mems[3]
				d.Do(&device.MatMul{C: mems[0], A: mems[1], B: mems[2], Product: m})
			})
		}
	}
	for _, size := range [][2]int{{1, 1}, {3, 5}, {17, 100}, {300, 33}, {5, 1}, {64, 130}} {
		rows, columns := size[0], size[1]
		operands := []tensor{c.out("sum", columns), c.in("x", rows*columns)}
		c.compare("SumRows", shape("R=%d C=%d", rows, columns), reduction, operands, func(d device.Device, m []device.Mem) {
			d.Do(&device.SumRows{Sum: m[0], X: m[1]})
		})
	}
}

func gelu(c *comparison) {
	for _, n := range lengths {
		x := tensor{name: "x", floats: c.normal(n, 0, 3)}
		copy(x.floats, []float32{-100, 100, 0, -8, 8, -1e-20, 30, -30})
		where := shape("n=%d", n)
		c.compare("GELU", where, function, []tensor{c.out("y", n), x}, func(d device.Device, m []device.Mem) {
			d.Do(&device.Unary{Y: m[0], X: m[1], Function: device.GELU})
		})
		c.compare("GELUBackward", where, function, []tensor{c.out("dx", n), c.in("dy", n), x}, func(d device.Device, m []device.Mem) {
			d.Do(&device.UnaryBackward{DX: m[0], DY: m[1], X: m[2], Function: device.GELU})
		})
		c.compare("GELUBackward in place", where, function, []tensor{c.out("dy", n), x}, func(d device.Device, m []device.Mem) {
			d.Do(&device.UnaryBackward{DX: m[0], DY: m[0], X: m[1], Function: device.GELU})
		})
	}
}

func layerNorm(c *comparison) {
	for _, size := range [][2]int{{1, 1}, {1, 7}, {3, 16}, {5, 33}, {2, 100}, {9, 512}, {4, 769}} {
		for _, mean := range []float64{0, 50} { // a variance taken as a difference of squares fails on the second
			layerNormCase(c, size[0], size[1], mean)
		}
	}
}

func layerNormCase(c *comparison, rows, columns int, mean float64) {
	n, where := rows*columns, shape("R=%d C=%d mean=%g", rows, columns, mean)
	x := tensor{name: "x", floats: c.normal(n, mean, 1)}
	const epsilon = 1e-5
	forward := []tensor{c.out("y", n), c.out("mean", rows), c.out("rstd", rows), x, c.in("weight", columns), c.in("bias", columns)}
	if columns > 1 { // over one column rstd is 1/sqrt(epsilon) and magnifies the rounding of the mean
		c.compare("LayerNorm", where, reduction, forward, func(d device.Device, m []device.Mem) {
			d.Do(&device.Norm{Y: m[0], Mean: m[1], Rstd: m[2], X: m[3], Weight: m[4], Bias: m[5], Epsilon: epsilon})
		})
	}
	means, rstds := statistics(x.floats, rows, columns, epsilon)
	for _, plus := range []tensor{{name: "plus"}, c.in("plus", n)} {
		operands := []tensor{c.out("dx", n), c.in("dy", n), x, means, rstds, c.in("weight", columns), plus}
		with := where + shape(" Plus=%v", len(plus.floats) > 0)
		c.compare("LayerNormBackward", with, reduction, operands, func(d device.Device, m []device.Mem) {
			d.Do(&device.NormBackward{DX: m[0], DY: m[1], X: m[2], Mean: m[3], Rstd: m[4], Weight: m[5], Plus: m[6]})
		})
	}
	inPlace := []tensor{c.out("dy", n), x, means, rstds, c.in("weight", columns)}
	c.compare("LayerNormBackward in place", where, reduction, inPlace, func(d device.Device, m []device.Mem) {
		d.Do(&device.NormBackward{DX: m[0], DY: m[0], X: m[1], Mean: m[2], Rstd: m[3], Weight: m[4]})
	})
	weights := []tensor{c.out("dweight", columns), c.out("dbias", columns), c.in("dy", n), x, means, rstds}
	c.compare("LayerNormBackwardWeight", where, reduction, weights, func(d device.Device, m []device.Mem) {
		d.Do(&device.NormBackwardWeight{DWeight: m[0], DBias: m[1], DY: m[2], X: m[3], Mean: m[4], Rstd: m[5]})
	})
}

// statistics are the mean and the reciprocal deviation of every row of x.
func statistics(x []float32, rows, columns int, epsilon float64) (mean, rstd tensor) {
	mean, rstd = tensor{name: "mean", floats: make([]float32, rows)}, tensor{name: "rstd", floats: make([]float32, rows)}
	for r := range rows {
		var sum, squares float64
		for _, v := range x[r*columns : (r+1)*columns] {
			sum += float64(v)
		}
		m := sum / float64(columns)
		for _, v := range x[r*columns : (r+1)*columns] {
			squares += (float64(v) - m) * (float64(v) - m)
		}
		mean.floats[r], rstd.floats[r] = float32(m), float32(1/math.Sqrt(squares/float64(columns)+epsilon))
	}
	return mean, rstd
}

func embedding(c *comparison) {
	for _, size := range [][4]int{{1, 1, 1, 1}, {2, 3, 5, 4}, {3, 17, 33, 10}, {2, 8, 64, 3}} {
		b, t, width, vocabulary := size[0], size[1], size[2], size[3]
		n, where := b*t*width, shape("B=%d T=%d D=%d V=%d", b, t, width, vocabulary)
		longer := (t + 2) * width // positions may be longer than the sequence, which may begin later
		ids := c.ids("ids", b*t, vocabulary)
		forward := []tensor{c.out("out", n), c.in("tokens", vocabulary*width), c.in("positions", longer), ids}
		c.compare("Embed", where, exact, forward, func(d device.Device, m []device.Mem) {
			d.Do(&device.Embed{Out: m[0], Tokens: m[1], Positions: m[2], IDs: m[3], T: t})
		})
		c.compare("Embed of a later part", where, exact, forward, func(d device.Device, m []device.Mem) {
			d.Do(&device.Embed{Out: m[0], Tokens: m[1], Positions: m[2], IDs: m[3], T: t, Past: 2})
		})
		plain := []tensor{c.out("out", n), c.in("tokens", vocabulary*width), ids}
		c.compare("Embed without positions", where, exact, plain, func(d device.Device, m []device.Mem) {
			d.Do(&device.Embed{Out: m[0], Tokens: m[1], IDs: m[2], T: t})
		})
		plain = []tensor{c.in("dout", n), c.out("dtokens", vocabulary*width), ids}
		c.compare("EmbedBackward without positions", where, exact, plain, func(d device.Device, m []device.Mem) {
			d.Do(&device.EmbedBackward{DTokens: m[1], DOut: m[0], IDs: m[2], T: t})
		})
		backward := []tensor{c.out("dtokens", vocabulary*width), c.out("dpositions", longer), c.in("dout", n), ids}
		c.compare("EmbedBackward", where, exact, backward, func(d device.Device, m []device.Mem) {
			d.Do(&device.EmbedBackward{DTokens: m[0], DPositions: m[1], DOut: m[2], IDs: m[3], T: t})
		})
	}
}

func crossEntropy(c *comparison) {
	for _, size := range [][2]int{{1, 1}, {3, 2}, {5, 17}, {9, 256}, {4, 1001}} {
		rows, vocabulary := size[0], size[1]
		for _, spread := range []float64{1, 60} {
			logits := tensor{name: "logits", floats: c.normal(rows*vocabulary, 0, spread)}
			targets := c.ids("targets", rows, vocabulary)
			if rows > 1 {
				targets.ints[rows/2] = -1
			}
			where, scale := shape("R=%d V=%d spread=%g", rows, vocabulary, spread), float32(1/float64(rows))
			operands := []tensor{c.out("losses", rows), logits, targets}
			c.compare("CrossEntropy loss", where, reduction, operands, func(d device.Device, m []device.Mem) {
				d.Do(&device.CrossEntropy{Losses: m[0], Logits: m[1], Targets: m[2], Scale: scale})
			})
			operands = append(operands, c.out("dlogits", rows*vocabulary))
			c.compare("CrossEntropy", where, reduction, operands, func(d device.Device, m []device.Mem) {
				d.Do(&device.CrossEntropy{Losses: m[0], DLogits: m[3], Logits: m[1], Targets: m[2], Scale: scale})
			})
			logits.result = true
			operands[1] = logits
			c.compare("CrossEntropy in place", where, reduction, operands[:3], func(d device.Device, m []device.Mem) {
				d.Do(&device.CrossEntropy{Losses: m[0], DLogits: m[1], Logits: m[1], Targets: m[2], Scale: scale})
			})
		}
	}
}

// poison puts one logit that is not finite at every place of a row: the row's loss must show it, the others must not.
func poison(c *comparison) {
	const rows, vocabulary = 3, 37
	for _, bad := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
		for at := range vocabulary {
			logits := c.in("logits", rows*vocabulary)
			logits.floats[vocabulary+at] = float32(bad)
			operands := []tensor{c.out("losses", rows), logits, c.ids("targets", rows, vocabulary)}
			losses := c.run(c.dev, 0, "CrossEntropy", operands, func(d device.Device, m []device.Mem) {
				d.Do(&device.CrossEntropy{Losses: m[0], Logits: m[1], Targets: m[2], Scale: 1})
			})[0]
			for r, bits := range losses {
				loss := value(bits)
				if finite := !math.IsNaN(loss) && !math.IsInf(loss, 0); finite == (r == 1) {
					c.Fatalf("logit %d of row 1 is %v: the loss of row %d is %v", at, bad, r, loss)
				}
			}
		}
	}
}

// adams and sgds are the optimizer settings tried.
var (
	adams = []device.Adam{
		{Update: device.Update{LearningRate: 1e-3, Correction1: 0.1, Correction2: 0.001, GradScale: 1}, Beta1: 0.9, Beta2: 0.999, Epsilon: 1e-8},
		{Update: device.Update{LearningRate: 0.1, Correction1: 0.7, Correction2: 0.3, GradScale: 0.37}, Beta1: 0.8, Beta2: 0.95, Epsilon: 1e-3, WeightDecay: 0.1},
		{Update: device.Update{LearningRate: 0.1, Correction1: 1, Correction2: 1, GradScale: 0.5}, Beta1: 0.9, Beta2: 0.95, Epsilon: 1e-8, WeightDecay: 0.1, Decoupled: true},
	}
	sgds = []device.SGD{
		{Update: device.Update{LearningRate: 0.1, GradScale: 1}},
		{Update: device.Update{LearningRate: 0.1, GradScale: 0.3}, WeightDecay: 0.01},
		{Update: device.Update{LearningRate: 0.3, First: true, GradScale: 1}, Momentum: 0.9},
		{Update: device.Update{LearningRate: 0.3, GradScale: 0.7}, Momentum: 0.9, WeightDecay: 0.1},
		{Update: device.Update{LearningRate: 0.3, First: true, GradScale: 1}, Momentum: 0.9, Nesterov: true},
		{Update: device.Update{LearningRate: 0.3, GradScale: 1.0 / 3}, Momentum: 0.9, Nesterov: true},
	}
)

// squares is an operand of n elements that are not negative, as Adam's second moment is.
func (c *comparison) squares(name string, n int) tensor {
	x := c.out(name, n)
	for i, v := range x.floats {
		x.floats[i] = v * v
	}
	return x
}

func optimizers(c *comparison) {
	squaredNorms(c)
	for _, n := range lengths {
		for _, others := range [][2]tensor{{{name: "neither"}}, {c.out("delta", n)}, {{name: "a copy"}, c.out("copy", n).brain()}} {
			delta, copied := others[0], others[1]
			for i, a := range adams {
				operands := []tensor{c.out("p", n), c.in("g", n), c.out("m", n), c.squares("v", n), delta, copied}
				c.compare("AdamStep", shape("setting %d, n=%d, %s", i, n, delta.name), exact, operands, func(d device.Device, m []device.Mem) {
					d.Do(&device.AdamStep{P: m[0], G: m[1], M: m[2], V: m[3], Delta: m[4], Copy16: m[5], Adam: a})
				})
			}
			for i, s := range sgds {
				momentum := tensor{name: "no momentum"}
				if s.Momentum != 0 {
					momentum = c.out("m", n)
				}
				operands := []tensor{c.out("p", n), c.in("g", n), momentum, delta, copied}
				c.compare("SGDStep", shape("setting %d, n=%d, %s", i, n, delta.name), exact, operands, func(d device.Device, m []device.Mem) {
					d.Do(&device.SGDStep{P: m[0], G: m[1], M: m[2], Delta: m[3], Copy16: m[4], SGD: s})
				})
			}
		}
	}
}

// squaredNorms adds up the squares of gradients by an operation of its own and by each optimizer's, which must agree to the bit: a norm
// does not depend on which of them found it.
func squaredNorms(c *comparison) {
	const tolerance, before = 1e-13, 3.5 // of the sum
	var worst float64
	for _, n := range append(lengths, 1<<14, 1<<14+1, 100_003) {
		values := c.in("g", n)
		want := before
		for _, v := range values.floats {
			want += float64(v) * float64(v)
		}
		sum := c.alloc(c.dev, device.F64, 3)
		found := func(op func(g, sum device.Mem) device.Op) float64 {
			whole, g := c.place(c.dev, values, n%2*3)
			defer c.dev.Free(whole)
			got := make([]float64, 3)
			c.dev.Upload(sum, device.DoubleBytes([]float64{-1, before, -1}))
			c.dev.Do(op(g, sum.Slice(1, 1)))
			c.read(c.dev, device.DoubleBytes(got), sum)
			if got[0] != -1 || got[2] != -1 {
				c.Fatalf("SquaredNorm of %d elements wrote beside its sum: %v", n, got)
			}
			return got[1]
		}
		x := c.alloc(c.dev, device.F32, 3*n)
		alone := found(func(g, sum device.Mem) device.Op { return &device.SquaredNorm{Sum: sum, X: g} })
		for name, op := range map[string]func(g, sum device.Mem) device.Op{
			"SquaredNorm": func(g, sum device.Mem) device.Op { return &device.SquaredNorm{Sum: sum, X: g} },
			"AdamStep": func(g, sum device.Mem) device.Op {
				return &device.AdamStep{P: x.Slice(0, n), M: x.Slice(n, n), V: x.Slice(2*n, n), Sum: sum, G: g, Adam: adams[0]}
			},
			"SGDStep": func(g, sum device.Mem) device.Op { return &device.SGDStep{P: x.Slice(0, n), Sum: sum, G: g} },
			"ASGDStep": func(g, sum device.Mem) device.Op {
				return &device.ASGDStep{P: x.Slice(0, n), S: x.Slice(n, n), Sum: sum, G: g}
			},
		} {
			if got := found(op); got != alone {
				c.Fatalf("%s of %d elements: the sum is %v, and %v of the first SquaredNorm", name, n, got, alone)
			}
		}
		worst = max(worst, math.Abs(alone-want)/want)
		c.dev.Free(sum)
		c.dev.Free(x)
	}
	c.Logf("SquaredNorm: tolerance %.2g, largest difference %.2g", tolerance, worst)
	if !(worst <= tolerance) {
		c.Errorf("SquaredNorm: largest difference %g of the sum, tolerance %g", worst, tolerance)
	}
}

// flushes takes state across the smallest magnitude that optimizers keep, down to denormals.
func flushes(c *comparison) {
	state := []float32{0, 1e-28, -1e-28, 1.05e-30, 0.95e-30, -0.95e-30, 1e-31, -1e-36, 1e-38, 1e-40, -1e-44, float32(math.NaN()), 1, -1}
	tiny := func(name string) tensor {
		x := tensor{name: name, floats: make([]float32, 5*len(state)), result: true}
		for i := range x.floats {
			x.floats[i] = state[i%len(state)]
		}
		return x
	}
	p, g := c.out("p", 5*len(state)), tensor{name: "g", floats: make([]float32, 5*len(state))}
	check := func(op string, kept int, call func(d device.Device, m []device.Mem)) {
		operands := []tensor{p, g, tiny("first state"), tiny("second state")}
		for i, v := range operands[3].floats { // a second moment has no sign
			operands[3].floats[i] = max(v, -v)
		}
		c.compare(op, "of tiny state", exact, operands, call)
		zeros := 0
		for _, bits := range c.run(c.dev, 1, op, operands, call)[2:][:kept] {
			for _, b := range bits {
				if v := math.Abs(value(b)); v != 0 && v < device.Tiny {
					c.Fatalf("%s keeps a state of %g, expected 0 below %g", op, v, device.Tiny)
				}
				if b == 0 {
					zeros++
				}
			}
		}
		if zeros < kept*5*9 {
			c.Fatalf("%s flushes %d elements, expected all that become smaller than %g", op, zeros, device.Tiny)
		}
	}
	check("AdamStep", 2, func(d device.Device, m []device.Mem) {
		d.Do(&device.AdamStep{P: m[0], G: m[1], M: m[2], V: m[3], Adam: adams[2]})
	})
	check("SGDStep", 1, func(d device.Device, m []device.Mem) { d.Do(&device.SGDStep{P: m[0], G: m[1], M: m[2], SGD: sgds[5]}) })
	check("ASGDStep", 1, func(d device.Device, m []device.Mem) {
		d.Do(&device.ASGDStep{P: m[0], G: m[1], S: m[2], ASGD: device.ASGD{Update: device.Update{LearningRate: 0.1, GradScale: 1, Share: 1.0 / 3}}})
	})
}

// places gives the same operands to every element: the two copies of a tied parameter lie at different places of their
// vectors and must stay equal to the bit.
func places(c *comparison) {
	for _, n := range []int{1, 5, 16, 33, 100} {
		operands := []tensor{constant("p", n, 0.3), constant("g", n, 0.7), constant("m", n, 0.11), constant("v", n, 0.013)}
		for shift := range 4 {
			results := c.run(c.dev, shift, "AdamStep", operands, func(d device.Device, m []device.Mem) {
				d.Do(&device.AdamStep{P: m[0], G: m[1], M: m[2], V: m[3], Adam: adams[1]})
				d.Do(&device.SGDStep{P: m[0], G: m[1], M: m[2], SGD: sgds[5]})
			})
			for _, bits := range results {
				for i, b := range bits {
					if b != bits[0] {
						c.Fatalf("element %d of %d at offset %d differs from element 0", i, n, shift)
					}
				}
			}
		}
	}
}
