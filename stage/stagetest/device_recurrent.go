package stagetest

import (
	"math"

	"github.com/avgpipe/avgpipe/stage/device"
)

// lstmShapes have ones, odd widths, the tails of every vector width, and two directions that share their rows.
var lstmShapes = []device.LSTMShape{
	{B: 1, T: 1, H: 1, OutStride: 1},
	{B: 3, T: 4, H: 5, OutStride: 5},
	{B: 2, T: 6, H: 17, OutStride: 34},
	{B: 5, T: 3, H: 33, OutStride: 33},
	{B: 4, T: 7, H: 64, OutStride: 128},
}

func lstm(c *comparison) {
	for _, l := range lstmShapes {
		for flags := range 4 {
			l.Reverse = flags&1 != 0
			mask := tensor{name: "no mask"}
			if flags&2 != 0 {
				mask = c.ragged(l.B, l.T)
			}
			eachType(func(kind string, of func(tensor) tensor) { lstmCase(c, l, mask, kind, of) })
		}
	}
	lstmRounds(c)
}

// ragged is a mask of samples of different lengths, at least 1, the last one whole.
func (c *comparison) ragged(b, t int) tensor {
	mask := tensor{name: "mask", ints: make([]int32, b*t)}
	for i := range mask.ints {
		if sample := i / t; sample == b-1 || i%t <= sample%t {
			mask.ints[i] = 1
		}
	}
	return mask
}

// lstmCase compares an LSTM whose weights are of one type. Where they are BF16, sums that differ in their last bits may be rounded to
// neighbouring elements before they are multiplied.
func lstmCase(c *comparison, l device.LSTMShape, mask tensor, kind string, of func(tensor) tensor) {
	rows := l.B * l.T
	out := (rows-1)*l.OutStride + l.H
	where := shape("B=%d T=%d H=%d stride=%d reverse=%v %s", l.B, l.T, l.H, l.OutStride, l.Reverse, mask.name)
	weight := of(tensor{name: "weight", floats: c.normal(4*l.H*l.H, 0, 1/math.Sqrt(float64(l.H)))})
	within := func(n int) float64 {
		if weight.bf16 {
			return rounding
		}
		return product * math.Sqrt(float64(n))
	}
	forward := []tensor{
		c.out("out", out), c.out("gates", rows*4*l.H), c.out("cells", rows*l.H), of(c.out("previous", rows*l.H)), weight, mask,
	}
	c.compare("LSTM"+kind, where, within(l.H), forward, func(d device.Device, m []device.Mem) {
		l.Mask = m[5]
		d.Do(&device.LSTM{Out: m[0], Gates: m[1], Cells: m[2], Previous: m[3], Weight: m[4], LSTMShape: l})
	})
	c.compare("LSTM that continues", where, product*math.Sqrt(float64(l.H)), append(forward, c.in("before", l.B*l.H)), func(d device.Device, m []device.Mem) {
		l.Mask = m[5]
		d.Do(&device.LSTM{Out: m[0], Gates: m[1], Cells: m[2], Previous: m[3], Weight: m[4], Before: m[6], LSTMShape: l})
	})
	gates := tensor{name: "gates", floats: c.normal(rows*4*l.H, 0.5, 0.2)} // activated: between 0 and 1, most of them
	backward := []tensor{
		c.out("dgates", rows*4*l.H), c.out("carry", 2*l.B*l.H), c.in("dout", out), gates, c.in("cells", rows*l.H), weight, mask,
	}
	c.compare("LSTMBackward"+kind, where, within(l.T*l.H), backward, func(d device.Device, m []device.Mem) {
		l.Mask = m[6]
		d.Do(&device.LSTMBackward{DGates: m[0], Carry: m[1], DOut: m[2], Gates: m[3], Cells: m[4], Weight: m[5], LSTMShape: l})
		d.Do(&device.Zero{X: m[1]}) // scratch
	})
}

// lstmRounds holds that what is multiplied by weights in BF16 is rounded too: results are nearer to the oracle's than those are to
// what it computes of the same weights in F32.
func lstmRounds(c *comparison) {
	l := device.LSTMShape{B: 4, T: 7, H: 64, OutStride: 64}
	rows := l.B * l.T
	out, gates, cells := c.out("out", rows*l.H), c.in("gates", rows*4*l.H), c.out("cells", rows*l.H)
	previous, dgates, carry := c.out("previous", rows*l.H), c.out("dgates", rows*4*l.H), c.out("carry", 2*l.B*l.H)
	weight, dout := tensor{name: "weight", floats: c.normal(4*l.H*l.H, 0, 1/math.Sqrt(float64(l.H)))}.brain(), c.in("dout", rows*l.H)
	pass := func(dev device.Device, previous, weight tensor) [][]int32 {
		operands := []tensor{out, gates, cells, previous, weight, dout, dgates, carry}
		return c.run(dev, 0, "LSTM", operands, func(d device.Device, m []device.Mem) {
			d.Do(&device.LSTM{Out: m[0], Gates: m[1], Cells: m[2], Previous: m[3], Weight: m[4], LSTMShape: l})
			d.Do(&device.LSTMBackward{DGates: m[6], Carry: m[7], DOut: m[5], Gates: m[1], Cells: m[2], Weight: m[4], LSTMShape: l})
		})
	}
	wide := weight
	wide.bf16 = false
	own, rounded, exact := pass(c.dev, previous.brain(), weight), pass(c.oracle, previous.brain(), weight), pass(c.oracle, previous, wide)
	for _, i := range []int{0, 6} {
		far, near := distance(exact[i], rounded[i]), distance(own[i], rounded[i])
		c.Logf("operand %d: %.2g from the oracle's, which is %.2g from that of weights in F32", i, near, far)
		if !(near < far/2) {
			c.Errorf("operand %d: %.3g from the oracle's, which is %.3g from that of weights in F32: what is multiplied is not rounded", i, near, far)
		}
	}
}

// distance is Euclid's.
func distance(x, y []int32) float64 {
	sum := 0.0
	for i := range x {
		d := value(x[i]) - value(y[i])
		sum += d * d
	}
	return math.Sqrt(sum)
}

func additive(c *comparison) {
	for _, size := range [][3]int{{1, 1, 1}, {2, 3, 5}, {3, 17, 33}, {2, 9, 64}, {4, 5, 100}} {
		for _, masked := range []bool{false, true} {
			a := device.Additive{B: size[0], T: size[1], N: size[2]}
			mask := tensor{name: "no mask"}
			if masked {
				mask = c.ragged(a.B, a.T)
			}
			additiveCase(c, a, mask)
		}
	}
}

func additiveCase(c *comparison, a device.Additive, mask tensor) {
	where, rows := shape("B=%d T=%d N=%d %s", a.B, a.T, a.N, mask.name), a.B*a.T
	q, k, v := c.in("q", rows*a.N), c.in("k", rows*a.N), c.in("v", a.N)
	forward := []tensor{c.out("probabilities", rows*a.T), q, k, v, mask}
	c.compare("AdditiveAttention", where, product*math.Sqrt(float64(a.N)), forward, func(d device.Device, m []device.Mem) {
		a.Mask = m[4]
		d.Do(&device.AdditiveAttention{Probabilities: m[0], Q: m[1], K: m[2], V: m[3], Additive: a})
	})
	backward := []tensor{
		c.out("dq", rows*a.N), c.out("dk", rows*a.N), c.out("dv", a.N), c.out("dprobabilities", rows*a.T),
		c.out("probabilities", rows*a.T), q, k, v, mask,
	}
	tolerance := product * math.Sqrt(float64(a.T*a.N))
	c.compare("AdditiveAttentionBackward", where, tolerance, backward, func(d device.Device, m []device.Mem) {
		a.Mask = m[8]
		d.Do(&device.AdditiveAttention{Probabilities: m[4], Q: m[5], K: m[6], V: m[7], Additive: a})
		d.Do(&device.AdditiveAttentionBackward{
			DQ: m[0], DK: m[1], DV: m[2], DProbabilities: m[3], Probabilities: m[4], Q: m[5], K: m[6], V: m[7], Additive: a,
		})
	})
}

// inattention masks all keys of one sample: its queries get no probability, nothing that is not finite, and no gradient.
func inattention(c *comparison) {
	a := device.Additive{B: 2, T: 3, N: 4}
	mask := tensor{name: "mask", ints: []int32{0, 0, 0, 1, 1, 0}}
	operands := []tensor{
		c.out("probabilities", 18), c.in("q", 24), c.in("k", 24), c.in("v", 4), mask,
		c.out("dq", 24), c.out("dk", 24), c.out("dv", 4), c.out("dprobabilities", 18),
	}
	results := c.run(c.dev, 0, "AdditiveAttention", operands, func(d device.Device, m []device.Mem) {
		a.Mask = m[4]
		d.Do(&device.AdditiveAttention{Probabilities: m[0], Q: m[1], K: m[2], V: m[3], Additive: a})
		d.Do(&device.AdditiveAttentionBackward{
			DQ: m[5], DK: m[6], DV: m[7], DProbabilities: m[8], Probabilities: m[0], Q: m[1], K: m[2], V: m[3], Additive: a,
		})
	})
	for i, bits := range results[0] {
		if none := i < 9 || i%3 == 2; none && value(bits) != 0 {
			c.Fatalf("probability %d of a key that is not attended to is %v", i, value(bits))
		}
	}
	for _, at := range []int{5, 6} {
		for i, bits := range results[at][:12] {
			if value(bits) != 0 {
				c.Fatalf("%s[%d] of a sample without keys is %v", operands[at].name, i, value(bits))
			}
		}
	}
}

func weightNorm(c *comparison) {
	for _, n := range lengths {
		where := shape("n=%d", n)
		forward := []tensor{c.out("v", n), c.in("direction", n), c.in("length", 1)}
		c.compare("WeightNorm", where, reduction, forward, func(d device.Device, m []device.Mem) {
			d.Do(&device.WeightNorm{V: m[0], Direction: m[1], Length: m[2]})
		})
		backward := []tensor{c.out("ddirection", n), c.out("dlength", 1), c.in("dv", n), c.in("direction", n), c.in("length", 1)}
		c.compare("WeightNormBackward", where, reduction, backward, func(d device.Device, m []device.Mem) {
			d.Do(&device.WeightNormBackward{DDirection: m[0], DLength: m[1], DV: m[2], Direction: m[3], Length: m[4]})
		})
	}
}

func columns(c *comparison) {
	for _, x := range []device.Columns{
		{Rows: 1, Columns: 1, YStride: 1, XStride: 1},
		{Rows: 5, Columns: 3, YStride: 7, XStride: 3},
		{Rows: 9, Columns: 33, YStride: 33, XStride: 50},
	} {
		for _, x.Add = range []bool{false, true} {
			operands := []tensor{c.out("y", (x.Rows-1)*x.YStride+x.Columns), c.in("x", (x.Rows-1)*x.XStride+x.Columns)}
			where := shape("R=%d C=%d add=%v", x.Rows, x.Columns, x.Add)
			c.compare("CopyColumns", where, exact, operands, func(d device.Device, m []device.Mem) { d.Do(&device.CopyColumns{Y: m[0], X: m[1], Columns: x}) })
		}
	}
}

// droppedRows compares with the oracle, and checks that rows of one id are all kept or all dropped, that both occur, and that
// they are those of device.Draws.
func droppedRows(c *comparison) {
	const rows, vocabulary = 200, 50
	for _, columns := range []int{1, 5, 33} {
		o := device.DropoutMask{Rate: 0.4, Key: 99, Rows: rows, Columns: columns}
		ids, x := c.ids("ids", rows, vocabulary), c.in("x", rows*columns)
		operands := []tensor{c.out("y", rows*columns), x, ids}
		call := func(d device.Device, m []device.Mem) {
			d.Do(&device.Dropout{Y: m[0], X: m[1], IDs: m[2], DropoutMask: o})
		}
		c.compare("DropRows", shape("C=%d", columns), exact, operands, call)
		y := c.run(c.dev, 0, "DropRows", operands, call)[0]
		threshold, _ := o.Derived()
		dropped := 0
		for r, id := range ids.ints {
			want := device.Draws(o.Key, uint64(id)/4)[id%4] < threshold
			if found := value(y[r*columns]) == 0; found != want {
				c.Fatalf("row %d of id %d: dropped is %v, want %v", r, id, found, want)
			}
			if want {
				dropped++
			}
		}
		if dropped < rows/5 || dropped > rows*3/5 {
			c.Fatalf("%d of %d rows are dropped at a rate of %v", dropped, rows, o.Rate)
		}
	}
}

func smoothed(c *comparison) {
	for _, size := range [][2]int{{1, 1}, {3, 2}, {5, 17}, {9, 256}, {4, 1001}} {
		rows, vocabulary := size[0], size[1]
		logits, targets := tensor{name: "logits", floats: c.normal(rows*vocabulary, 0, 3)}, c.ids("targets", rows, vocabulary)
		if rows > 1 {
			targets.ints[rows/2] = -1
		}
		where, scale := shape("R=%d V=%d", rows, vocabulary), float32(1/float64(rows))
		operands := []tensor{c.out("losses", rows), c.out("dlogits", rows*vocabulary), logits, targets}
		c.compare("SmoothedCrossEntropy", where, reduction, operands, func(d device.Device, m []device.Mem) {
			d.Do(&device.CrossEntropy{Losses: m[0], DLogits: m[1], Logits: m[2], Targets: m[3], Scale: scale, Smoothing: 0.1})
		})
		c.compare("SmoothedCrossEntropy loss", where, reduction, []tensor{c.out("losses", rows), logits, targets},
			func(d device.Device, m []device.Mem) {
				d.Do(&device.CrossEntropy{Losses: m[0], Logits: m[1], Targets: m[2], Scale: scale, Smoothing: 0.1})
			})
		logits.result = true
		c.compare("SmoothedCrossEntropy in place", where, reduction, []tensor{c.out("losses", rows), logits, targets},
			func(d device.Device, m []device.Mem) {
				d.Do(&device.CrossEntropy{Losses: m[0], DLogits: m[1], Logits: m[1], Targets: m[2], Scale: scale, Smoothing: 0.1})
			})
	}
}

func averaged(c *comparison) {
	for _, n := range lengths {
		for _, delta := range []tensor{{name: "no delta"}, c.out("delta", n)} {
			for i, a := range []device.ASGD{
				{Update: device.Update{LearningRate: 0.1, GradScale: 1, Share: 1}},
				{Update: device.Update{LearningRate: 0.3, GradScale: 0.7, Share: 1.0 / 3}, WeightDecay: 0.1},
			} {
				operands := []tensor{c.out("p", n), c.in("g", n), c.out("s", n), delta}
				c.compare("ASGDStep", shape("setting %d, n=%d, %s", i, n, delta.name), exact, operands, func(d device.Device, m []device.Mem) {
					d.Do(&device.ASGDStep{P: m[0], G: m[1], S: m[2], Delta: m[3], ASGD: a})
				})
			}
		}
	}
}

// recurrentInvariants calls with operands that do not fit.
func recurrentInvariants(c *comparison) {
	d, none := c.dev, device.Mem{}
	one, two, eight := c.alloc(d, device.F32, 1), c.alloc(d, device.F32, 2), c.alloc(d, device.F32, 8)
	ints, below := c.alloc(d, device.I32, 2), c.alloc(d, device.I32, 2)
	d.Upload(below, device.IntBytes([]int32{0, -1}))
	l, a := device.LSTMShape{B: 1, T: 2, H: 1, OutStride: 1}, device.Additive{B: 1, T: 1, N: 2}
	masked, narrow := l, l
	masked.Mask, narrow.OutStride = c.alloc(d, device.I32, 1), 0
	four := eight.Slice(0, 4)
	for name, call := range map[string]func(){
		"LSTM of few gates": func() {
			d.Do(&device.LSTM{Out: two, Gates: four, Cells: two, Previous: two, Weight: four, LSTMShape: l})
		},
		"LSTM of another weight": func() {
			d.Do(&device.LSTM{Out: two, Gates: eight, Cells: two, Previous: two, Weight: two, LSTMShape: l})
		},
		"LSTM with a short mask": func() {
			d.Do(&device.LSTM{Out: two, Gates: eight, Cells: two, Previous: two, Weight: four, LSTMShape: masked})
		},
		"LSTM of rows that overlap": func() {
			d.Do(&device.LSTM{Out: two, Gates: eight, Cells: two, Previous: two, Weight: four, LSTMShape: narrow})
		},
		"LSTM after cells of another number": func() {
			d.Do(&device.LSTM{Out: two, Gates: eight, Cells: two, Previous: two, Weight: four, Before: two, LSTMShape: l})
		},
		"LSTMBackward without carry": func() {
			d.Do(&device.LSTMBackward{DGates: eight, Carry: none, DOut: two, Gates: eight, Cells: two, Weight: four, LSTMShape: l})
		},
		"LSTMBackward of a short dout": func() {
			d.Do(&device.LSTMBackward{DGates: eight, Carry: two, DOut: one, Gates: eight, Cells: two, Weight: four, LSTMShape: l})
		},
		"AdditiveAttention of more units": func() { d.Do(&device.AdditiveAttention{Probabilities: one, Q: two, K: two, V: four, Additive: a}) },
		"AdditiveAttentionBackward": func() {
			d.Do(&device.AdditiveAttentionBackward{
				DQ: two, DK: one, DV: two, DProbabilities: one, Probabilities: one, Q: two, K: two, V: two, Additive: a,
			})
		},
		"WeightNorm of two lengths": func() { d.Do(&device.WeightNorm{V: two, Direction: two, Length: two}) },
		"WeightNormBackward": func() {
			d.Do(&device.WeightNormBackward{DDirection: two, DLength: two, DV: two, Direction: two, Length: one})
		},
		"CopyColumns beyond the end": func() {
			d.Do(&device.CopyColumns{Y: four, X: eight, Columns: device.Columns{Rows: 2, Columns: 2, YStride: 3, XStride: 2}})
		},
		"CopyColumns of rows that overlap": func() {
			d.Do(&device.CopyColumns{Y: four, X: eight, Columns: device.Columns{Rows: 2, Columns: 2, YStride: 2, XStride: 1}})
		},
		"DropRows of everything": func() {
			d.Do(&device.Dropout{Y: two, X: two, IDs: ints, DropoutMask: device.DropoutMask{Rate: 1, Rows: 2, Columns: 1}})
		},
		"DropRows of another length": func() {
			d.Do(&device.Dropout{Y: two, X: eight, IDs: ints, DropoutMask: device.DropoutMask{Rate: 0.5, Rows: 2, Columns: 1}})
		},
		"SmoothedCrossEntropy of more rows": func() {
			d.Do(&device.CrossEntropy{Losses: one, DLogits: none, Logits: two, Targets: ints, Scale: 1, Smoothing: 0.1})
		},
		"ASGDStep of another length":  func() { d.Do(&device.ASGDStep{P: two, G: two, S: one, Delta: none, ASGD: device.ASGD{}}) },
		"ASGDStep with a short delta": func() { d.Do(&device.ASGDStep{P: two, G: two, S: two, Delta: one, ASGD: device.ASGD{}}) },
	} {
		c.refuses(name, call)
	}
	c.refusesID("DropRows of a negative id", func() {
		d.Do(&device.Dropout{Y: two, X: two, IDs: below, DropoutMask: device.DropoutMask{Rate: 0.5, Rows: 2, Columns: 1}})
	})
}

// recurrentAllocations is allocations for these operations.
func recurrentAllocations(c *comparison) {
	const b, t, h = 2, 3, 16
	d, rows := &Recorder{Device: c.dev}, b*t
	floats := func(n int) device.Mem { return c.alloc(d, device.F32, n) }
	x, y, z, gates, dgates := floats(rows*h), floats(rows*h), floats(rows*h), floats(rows*4*h), floats(rows*4*h)
	weight, carry, v, length := floats(4*h*h), floats(2*b*h), floats(h), floats(1)
	p, dp, losses, ids := floats(rows*t), floats(rows*t), floats(rows), c.alloc(d, device.I32, rows)
	l, a := device.LSTMShape{B: b, T: t, H: h, OutStride: h}, device.Additive{B: b, T: t, N: h}
	for name, call := range map[string]func(){
		"LSTM": func() { d.Do(&device.LSTM{Out: x, Gates: gates, Cells: y, Previous: z, Weight: weight, LSTMShape: l}) },
		"LSTMBackward": func() {
			d.Do(&device.LSTMBackward{DGates: dgates, Carry: carry, DOut: x, Gates: gates, Cells: y, Weight: weight, LSTMShape: l})
		},
		"AdditiveAttention": func() { d.Do(&device.AdditiveAttention{Probabilities: p, Q: x, K: y, V: v, Additive: a}) },
		"AdditiveAttentionBackward": func() {
			d.Do(&device.AdditiveAttentionBackward{
				DQ: z, DK: x, DV: v, DProbabilities: dp, Probabilities: p, Q: x, K: y, V: v, Additive: a,
			})
		},
		"WeightNorm": func() { d.Do(&device.WeightNorm{V: v, Direction: v, Length: length}) },
		"WeightNormBackward": func() {
			d.Do(&device.WeightNormBackward{DDirection: v, DLength: length, DV: v, Direction: v, Length: length})
		},
		"CopyColumns": func() {
			d.Do(&device.CopyColumns{Y: x, X: gates, Columns: device.Columns{Rows: rows, Columns: h, YStride: h, XStride: 4 * h}})
		},
		"DropRows": func() {
			d.Do(&device.Dropout{Y: x, X: x, IDs: ids, DropoutMask: device.DropoutMask{Rate: 0.5, Rows: rows, Columns: h}})
		},
		"SmoothedCrossEntropy": func() {
			d.Do(&device.CrossEntropy{Losses: losses, DLogits: x, Logits: x, Targets: ids, Scale: 1, Smoothing: 0.1})
		},
		"ASGDStep": func() { d.Do(&device.ASGDStep{P: x, G: y, S: z, ASGD: device.ASGD{}}) },
	} {
		d.AllocatesNothing(c.T, name, call)
	}
}
