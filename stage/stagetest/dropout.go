package stagetest

import (
	"math"

	"github.com/avgpipe/avgpipe/stage/device"
)

// dropouts are sequences that begin within and at a block of four draws, beyond 2^32 of them too, rows that share a mask,
// rates at both ends, and runs longer than a kernel's buffer.
var dropouts = []device.DropoutMask{
	{Rate: 0.5, Key: 1, Rows: 1, Columns: 1, Share: 1},
	{Rate: 0.1, Key: 1 << 40, First: 7, Rows: 3, Columns: 5, Share: 1},
	{Rate: 0, Key: 3, First: 2, Rows: 2, Columns: 33, Share: 1},
	{Rate: 0.999, Key: 4, First: 1<<33 + 3, Rows: 5, Columns: 64, Share: 5},
	{Rate: 0.3, Key: math.MaxUint64, First: 1, Rows: 6, Columns: 17, Share: 2},
	{Rate: 0.25, Key: 6, First: 1<<32 - 9, Rows: 4, Columns: 1100, Share: 1},
	{Rate: 0.75, Key: 7, First: 5, Rows: 6, Columns: 700, Share: 3},
}

func dropout(c *comparison) {
	for _, o := range dropouts {
		n, where := o.Rows*o.Columns, shape("%+v", o)
		c.compare("Dropout", where, exact, []tensor{c.out("y", n), c.in("x", n)}, func(d device.Device, m []device.Mem) {
			d.Do(&device.Dropout{Y: m[0], X: m[1], DropoutMask: o})
		})
		c.compare("Dropout in place", where, exact, []tensor{c.out("x", n)}, func(d device.Device, m []device.Mem) {
			d.Do(&device.Dropout{Y: m[0], X: m[0], DropoutMask: o})
		})
		c.compare("Dropout of BF16", where, exact, []tensor{c.out("y", n).brain(), c.in("x", n).brain()}, func(d device.Device, m []device.Mem) {
			d.Do(&device.Dropout{Y: m[0], X: m[1], DropoutMask: o})
		})
	}
	dropoutRate(c)
	dropoutCut(c)
	x := c.alloc(c.dev, device.F32, 64)
	o := device.DropoutMask{Rate: 0.5, Rows: 4, Columns: 16, Share: 2}
	d := &Recorder{Device: c.dev}
	d.AllocatesNothing(c.T, "Dropout", func() { d.Do(&device.Dropout{Y: x, X: x, DropoutMask: o}) })
	for name, o := range map[string]device.DropoutMask{
		"of everything":     {Rate: 1, Rows: 4, Columns: 16, Share: 1},
		"of too many rows":  {Rate: 0.5, Rows: 5, Columns: 16, Share: 1},
		"of a broken share": {Rate: 0.5, Rows: 4, Columns: 16, Share: 3},
	} {
		if !panics(func() { c.dev.Do(&device.Dropout{Y: x, X: x, DropoutMask: o}) }) {
			c.Errorf("Dropout %s did not panic", name)
		}
	}
}

// dropoutRate counts what is dropped of many ones, and the runs of equal outcomes, against the binomial distribution: five
// deviations, so that a fair generator fails once in a million seeds; the seed is fixed.
func dropoutRate(c *comparison) {
	const n, rate = 1 << 16, 0.2
	x := tensor{name: "x", floats: make([]float32, n), result: true}
	for i := range x.floats {
		x.floats[i] = 1
	}
	o := device.DropoutMask{Rate: rate, Key: 99, Rows: 1, Columns: n, Share: 1}
	got := c.run(c.dev, 0, "Dropout", []tensor{x}, func(d device.Device, m []device.Mem) { d.Do(&device.Dropout{Y: m[0], X: m[0], DropoutMask: o}) })[0]
	dropped, changes := 0, 0
	for i, b := range got {
		if b == 0 {
			dropped++
		} else if v := value(b); v != float64(float32(1/(1-float64(float32(rate))))) {
			c.Fatalf("a kept 1 became %v", v)
		}
		if i > 0 && (b == 0) != (got[i-1] == 0) {
			changes++
		}
	}
	for what, f := range map[string]struct {
		found int
		rate  float64
	}{"dropped": {dropped, rate}, "changes": {changes, 2 * rate * (1 - rate)}} {
		mean, deviation := n*f.rate, math.Sqrt(n*f.rate*(1-f.rate))
		if math.Abs(float64(f.found)-mean) > 5*deviation {
			c.Errorf("%d %s of %d, expected %.0f within %.0f", f.found, what, n, mean, 5*deviation)
		}
	}
}

// dropoutCut draws one matrix as a whole and in two parts, as micro-batches do.
func dropoutCut(c *comparison) {
	const rows, columns = 6, 37
	x := c.out("x", rows*columns)
	for _, share := range []int{1, 3} {
		o := device.DropoutMask{Rate: 0.4, Key: 5, Rows: rows, Columns: columns, Share: share}
		call := func(parts int) []int32 {
			return c.run(c.dev, 0, "Dropout", []tensor{x}, func(d device.Device, m []device.Mem) {
				for i := range parts {
					part := o
					part.Rows = rows / parts
					part.First = i * part.Rows / share * columns
					run := m[0].Slice(i*part.Rows*columns, part.Rows*columns)
					d.Do(&device.Dropout{Y: run, X: run, DropoutMask: part})
				}
			})[0]
		}
		if whole, halves := call(1), call(2); !equalBits(whole, halves) {
			c.Errorf("share %d: two halves drop others than the whole", share)
		}
	}
}
