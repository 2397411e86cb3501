package stagetest

import (
	"math"

	"github.com/avgpipe/avgpipe/stage/device"
)

// constant is an operand of n equal elements.
func constant(name string, n int, v float32) tensor {
	x := tensor{name: name, floats: make([]float32, n)}
	for i := range x.floats {
		x.floats[i] = v
	}
	return x
}

// longSums adds a million times 0.1: one after the other in float32, that makes 100,958.
func longSums(c *comparison) {
	const rows, columns = 1_000_000, 3
	want := rows * float64(float32(0.1))
	check := func(op string, sums int, operands []tensor, call func(d device.Device, m []device.Mem)) {
		for i := range sums {
			operands[i].result = true
		}
		c.compare(op, "of a million rows", reduction, operands, call)
		for _, bits := range c.run(c.oracle, 0, op, operands, call)[:sums] {
			for _, b := range bits {
				if math.Abs(value(b)-want) > reduction*want {
					c.Fatalf("%s of a million rows of 0.1 on the oracle is %v, want %v", op, value(b), want)
				}
			}
		}
	}
	zeros, tenths := constant("sum", columns, 0), constant("x", rows*columns, 0.1)
	check("SumRows", 1, []tensor{zeros, tenths}, func(d device.Device, m []device.Mem) { d.Do(&device.SumRows{Sum: m[0], X: m[1]}) })
	x, mean, rstd := constant("x", rows*columns, 3), constant("mean", rows, 1), constant("rstd", rows, 0.5)
	check("NormBackwardWeight", 2, []tensor{zeros, zeros, tenths, x, mean, rstd}, func(d device.Device, m []device.Mem) {
		d.Do(&device.NormBackwardWeight{DWeight: m[0], DBias: m[1], DY: m[2], X: m[3], Mean: m[4], Rstd: m[5]})
	})
	ones := constant("x", rows*columns, 2)
	check("NormBackwardWeight of a root mean square", 1, []tensor{zeros, tenths, ones, rstd}, func(d device.Device, m []device.Mem) {
		d.Do(&device.NormBackwardWeight{DWeight: m[0], DY: m[1], X: m[2], Rstd: m[3]})
	})
}

// tinySpread has rows that lie far from 0 and differ by two steps of a float at most.
func tinySpread(c *comparison) {
	const rows, columns = 3, 5000
	for _, mean := range []float32{1, 1000, -3e4, 1e9} {
		step := math.Nextafter32(mean, 2*mean) - mean
		for _, steps := range []int{0, 1, 2} { // none: all are the same, and the variance is 0
			x := constant("x", rows*columns, mean)
			for i := range x.floats {
				x.floats[i] += step * float32(c.rng.IntN(steps+1))
			}
			where := shape("mean=%g spread=%d*%g", mean, steps, step)
			norm := []tensor{c.out("y", rows*columns), c.out("mean", rows), c.out("rstd", rows), x, constant("weight", columns, 1), constant("bias", columns, 0)}
			run := func(d device.Device) []int32 {
				return c.run(d, 0, where, norm, func(d device.Device, m []device.Mem) {
					d.Do(&device.Norm{Y: m[0], Mean: m[1], Rstd: m[2], X: m[3], Weight: m[4], Bias: m[5], Epsilon: 1e-12})
				})[2]
			}
			c.record("LayerNorm of nearly equal elements", where+": rstd", reduction, run(c.dev), run(c.oracle))
			n := device.GroupShape{B: 1, P: 1500, C: 10, Groups: 5}
			moments := []tensor{c.out("mean", n.Groups), c.out("variance", n.Groups), x}
			c.compare("GroupMoments of nearly equal elements", where, reduction, moments, func(d device.Device, m []device.Mem) {
				d.Do(&device.GroupMoments{Mean: m[0], Variance: m[1], X: m[2], GroupShape: n})
			})
		}
	}
}
