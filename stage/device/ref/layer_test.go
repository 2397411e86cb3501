package ref

import (
	"math"
	"testing"

	"github.com/avgpipe/avgpipe/stage/device"
)

// product is the definition of MatMul, in float64.
func product(c, a, b []float32, m device.Product) []float32 {
	out := make([]float32, m.M*m.N)
	for i := range m.M {
		for j := range m.N {
			var sum float64
			switch {
			case m.Accumulate:
				sum = float64(c[i*m.N+j])
			case !m.Bias.Absent():
				sum = float64(m.Bias.F32()[j])
			}
			for k := range m.K {
				x, y := a[i*m.K+k], b[k*m.N+j]
				if m.TransA {
					x = a[k*m.M+i]
				}
				if m.TransB {
					y = b[j*m.K+k]
				}
				sum += float64(x) * float64(y)
			}
			out[i*m.N+j] = float32(sum)
		}
	}
	return out
}

func TestMatMulIsItsDefinition(t *testing.T) {
	d, rng := New(), seeded()
	for _, size := range [][3]int{{1, 1, 1}, {2, 3, 4}, {5, 7, 3}, {3, columnBlock + 5, 9}} {
		for flags := range 12 {
			m := device.Product{M: size[0], N: size[1], K: size[2], TransA: flags&1 != 0, TransB: flags&2 != 0}
			switch flags / 4 {
			case 1:
				m.Accumulate = true
			case 2:
				m.Bias = random(t, rng, m.N)
			}
			a, b, c := random(t, rng, m.M*m.K), random(t, rng, m.K*m.N), random(t, rng, m.M*m.N)
			want := product(c.F32(), a.F32(), b.F32(), m)
			d.Do(&device.MatMul{C: c, A: a, B: b, Product: m})
			near(t, "MatMul", 1e-5, c, want...)
		}
	}
}

func TestSumRowsAddsToTheSum(t *testing.T) {
	sum := floats(t, 100, 200)
	New().Do(&device.SumRows{Sum: sum, X: floats(t, 1, 2, 3, 4, 5, 6)})
	equal(t, "SumRows", sum, 109, 212)
}

func TestGELUKnownValuesAndSlope(t *testing.T) {
	d := New()
	x := floats(t, -30, -1, -0.1, 0, 0.5, 1, 3, 30)
	y, dy, dx := floats(t, make([]float32, 8)...), floats(t, 1, -2, 1, 2, 1, 3, 1, 1), floats(t, make([]float32, 8)...)
	d.Do(&device.Unary{Y: y, X: x, Function: device.GELU})
	near(t, "GELU", 1e-6, y, 0, -0.15880801, -0.04601725, 0, 0.34571400, 0.84119199, 2.99636261, 30)
	d.Do(&device.UnaryBackward{DX: dx, DY: dy, X: x, Function: device.GELU})
	gradient(t, "GELU", func() float64 { d.Do(&device.Unary{Y: y, X: x, Function: device.GELU}); return inner(y, dy) }, x, dx)
}

func TestLayerNormByHandAndGradients(t *testing.T) {
	d := New()
	y, mean, rstd := floats(t, 0, 0), floats(t, 0), floats(t, 0)
	d.Do(&device.Norm{Y: y, Mean: mean, Rstd: rstd, X: floats(t, 1, 5), Weight: floats(t, 3, 7), Bias: floats(t, 10, 20), Epsilon: 0})
	equal(t, "LayerNorm", y, 7, 27)
	equal(t, "mean", mean, 3)
	equal(t, "rstd", rstd, 0.5)

	const rows, columns, epsilon = 3, 5, 1e-3
	rng := seeded()
	x, weight, bias, dy := random(t, rng, rows*columns), random(t, rng, columns), random(t, rng, columns), random(t, rng, rows*columns)
	y, mean, rstd = random(t, rng, rows*columns), random(t, rng, rows), random(t, rng, rows)
	loss := func() float64 {
		d.Do(&device.Norm{Y: y, Mean: mean, Rstd: rstd, X: x, Weight: weight, Bias: bias, Epsilon: epsilon})
		return inner(y, dy)
	}
	loss()
	dx, dweight, dbias := random(t, rng, rows*columns), floats(t, make([]float32, columns)...), floats(t, make([]float32, columns)...)
	d.Do(&device.NormBackward{DX: dx, DY: dy, X: x, Mean: mean, Rstd: rstd, Weight: weight})
	d.Do(&device.NormBackwardWeight{DWeight: dweight, DBias: dbias, DY: dy, X: x, Mean: mean, Rstd: rstd})
	gradient(t, "x", loss, x, dx)
	gradient(t, "weight", loss, weight, dweight)
	gradient(t, "bias", loss, bias, dbias)
	copyDY := floats(t, dy.F32()...)
	d.Do(&device.NormBackward{DX: copyDY, DY: copyDY, X: x, Mean: mean, Rstd: rstd, Weight: weight})
	equal(t, "dx in the place of dy", copyDY, dx.F32()...)
	d.Do(&device.NormBackward{DX: copyDY, DY: dy, X: x, Mean: mean, Rstd: rstd, Weight: weight, Plus: y})
	d.Do(&device.Add{Out: dx, A: dx, B: y})
	equal(t, "dx and what reaches x past the norm", copyDY, dx.F32()...)
	before := dweight.F32()[0]
	d.Do(&device.NormBackwardWeight{DWeight: dweight, DBias: dbias, DY: dy, X: x, Mean: mean, Rstd: rstd})
	if after := dweight.F32()[0]; math.Abs(float64(after-2*before)) > 1e-5 {
		t.Errorf("dweight is %v after two backward passes, want twice %v", after, before)
	}
}

func TestEmbedAddsPositionsAndScattersBack(t *testing.T) {
	d := New()
	tokens, positions := floats(t, 1, 2, 3, 4, 5, 6), floats(t, 10, 20, 30, 40, 50, 60)
	ids, out := ints(t, 2, 0, 2, 2), floats(t, make([]float32, 8)...)
	d.Do(&device.Embed{Out: out, Tokens: tokens, Positions: positions, IDs: ids, T: 2})
	equal(t, "Embed", out, 15, 26, 31, 42, 15, 26, 35, 46)
	dtokens, dpositions := floats(t, 1, 1, 0, 0, 0, 0), floats(t, 0, 0, 0, 0, 7, 7)
	d.Do(&device.EmbedBackward{DTokens: dtokens, DPositions: dpositions, DOut: floats(t, 1, 2, 3, 4, 5, 6, 7, 8), IDs: ids, T: 2})
	equal(t, "dtokens", dtokens, 4, 5, 0, 0, 13, 16)
	equal(t, "dpositions", dpositions, 6, 8, 10, 12, 7, 7)
}

func TestAttentionByHand(t *testing.T) {
	// One head of width 1, two positions: row 0 sees itself; row 1 weighs 1 and 3 by softmax(2*1, 2*0).
	q, k, v := floats(t, 5, 2), floats(t, 1, 0), floats(t, 1, 3)
	out, saved := floats(t, 0, 0), floats(t, 0, 0)
	New().Do(&device.Attention{Out: out, Saved: saved, Q: q, K: k, V: v, AttentionShape: device.AttentionShape{B: 1, T: 2, H: 1, S: 1}})
	first := 1 / (1 + math.Exp(-2))
	near(t, "Attention", 1e-6, out, 1, float32(first*1+(1-first)*3))
	near(t, "saved", 1e-6, saved, 5, float32(math.Log(math.Exp(2)+1)))
}

func TestAttentionIsCausalAndItsGradientIsRight(t *testing.T) {
	d, rng := New(), seeded()
	a := device.AttentionShape{B: 2, T: 4, H: 2, S: 3}
	width := a.H * a.S
	q, k, v := random(t, rng, a.Queries()), random(t, rng, a.Keys()), random(t, rng, a.Keys())
	out, saved, dout := random(t, rng, a.B*a.T*width), random(t, rng, a.Saved()), random(t, rng, a.B*a.T*width)
	loss := func() float64 {
		d.Do(&device.Attention{Out: out, Saved: saved, Q: q, K: k, V: v, AttentionShape: a})
		return inner(out, dout)
	}
	loss()
	dq, dk, dv := random(t, rng, q.Len()), random(t, rng, k.Len()), random(t, rng, v.Len())
	d.Do(&device.AttentionBackward{DQ: dq, DK: dk, DV: dv, DOut: dout, Q: q, K: k, V: v, Out: out, Saved: saved, AttentionShape: a})
	gradient(t, "q", loss, q, dq)
	gradient(t, "k", loss, k, dk)
	gradient(t, "v", loss, v, dv)

	loss()
	before := append([]float32(nil), out.F32()...)
	for _, m := range []device.Mem{q, k, v} {
		clear(m.F32()[2*width : 4*width]) // positions 2 and 3 of sample 0
	}
	d.Do(&device.Attention{Out: out, Q: q, K: k, V: v, AttentionShape: a})
	for i := range 2 * width {
		if out.F32()[i] != before[i] {
			t.Fatalf("element %d of an earlier position changed with a later one", i)
		}
	}
}

func TestGroupedBidirectionalMaskedAttentionHasTheRightGradient(t *testing.T) {
	d, rng := New(), seeded()
	a := device.AttentionShape{B: 2, T: 3, H: 4, KV: 2, S: 2, QStride: 9, KVStride: 5, Bidirectional: true, Mask: ints(t, 1, 0, 1, 0, 0, 0)}
	q, k, v := random(t, rng, a.Queries()), random(t, rng, a.Keys()), random(t, rng, a.Keys())
	out, saved, dout := random(t, rng, 48), random(t, rng, a.Saved()), random(t, rng, 48)
	loss := func() float64 {
		d.Do(&device.Attention{Out: out, Saved: saved, Q: q, K: k, V: v, AttentionShape: a})
		return inner(out, dout)
	}
	loss()
	for i, o := range out.F32()[24:] {
		if o != 0 {
			t.Fatalf("element %d of a sample whose keys are all hidden is %v, want 0", i, o)
		}
	}
	// Between the rows lies what belongs to others; no gradient flows there.
	dq, dk, dv := floats(t, make([]float32, q.Len())...), floats(t, make([]float32, k.Len())...), floats(t, make([]float32, v.Len())...)
	d.Do(&device.AttentionBackward{DQ: dq, DK: dk, DV: dv, DOut: dout, Q: q, K: k, V: v, Out: out, Saved: saved, AttentionShape: a})
	gradient(t, "q", loss, q, dq)
	gradient(t, "k", loss, k, dk)
	gradient(t, "v", loss, v, dv)
}

func TestCrossEntropyLossGradientMaskAndPoison(t *testing.T) {
	d := New()
	losses := floats(t, 9, 9, 9)
	logits, targets := floats(t, 0, 0, 0, 0, 1, 2, 3, -1, 5, 6, 7, 8), ints(t, 3, 2, -1)
	dlogits := floats(t, make([]float32, 12)...)
	d.Do(&device.CrossEntropy{Losses: losses, DLogits: dlogits, Logits: logits, Targets: targets, Scale: 0.5})
	sum := math.Exp(1) + math.Exp(2) + math.Exp(3) + math.Exp(-1)
	near(t, "losses", 1e-6, losses, float32(math.Log(4)), float32(math.Log(sum)-3), 0)
	loss := func() float64 {
		d.Do(&device.CrossEntropy{Losses: losses, Logits: logits, Targets: targets, Scale: 0.5})
		return 0.5 * inner(losses, floats(t, 1, 1, 1))
	}
	gradient(t, "logits", loss, logits, dlogits)
	equal(t, "masked row", dlogits.Slice(8, 4), 0, 0, 0, 0)
	for _, bad := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
		logits.F32()[1] = float32(bad)
		d.Do(&device.CrossEntropy{Losses: losses, Logits: logits, Targets: targets, Scale: 1})
		if got := float64(losses.F32()[0]); !math.IsNaN(got) && !math.IsInf(got, 0) {
			t.Errorf("a logit of %v gives the finite loss %v", bad, got)
		}
	}
}

func TestAdamFirstStepMovesByTheLearningRate(t *testing.T) {
	d := New()
	p, g := floats(t, 1, 2, 3), floats(t, 4, -8, 0.5)
	m, v, delta := floats(t, 0, 0, 0), floats(t, 0, 0, 0), floats(t, 10, 10, 10)
	step := device.Adam{Update: device.Update{LearningRate: 0.5, Correction1: 0.5, Correction2: 0.25, GradScale: 0.5}, Beta1: 0.5, Beta2: 0.75}
	d.Do(&device.AdamStep{P: p, G: g, M: m, V: v, Delta: delta, Adam: step})
	equal(t, "p", p, 0.5, 2.5, 2.5) // m/c1 = g/2, sqrt(v/c2) = |g|/2
	equal(t, "m", m, 1, -2, 0.125)
	equal(t, "v", v, 1, 4, 0.015625)
	equal(t, "delta", delta, 9.5, 10.5, 9.5)

	decayed := floats(t, 2)
	step.WeightDecay, step.Decoupled = 0.25, true
	d.Do(&device.AdamStep{P: decayed, G: floats(t, 4), M: floats(t, 0), V: floats(t, 0), Adam: step})
	equal(t, "decoupled", decayed, 2*(1-0.125)-0.5)
	coupled, mean := floats(t, 2), floats(t, 0)
	step.Decoupled = false
	d.Do(&device.AdamStep{P: coupled, G: floats(t, 4), M: mean, V: floats(t, 0), Adam: step})
	equal(t, "coupled", mean, 0.5*(0.5*4+0.25*2))
}

func TestSGDMomentumAndNesterovByHand(t *testing.T) {
	d := New()
	s := device.SGD{Update: device.Update{LearningRate: 0.5, First: true, GradScale: 1}, Momentum: 0.5}
	p, m, delta := floats(t, 10), floats(t, 77), floats(t, 0)
	d.Do(&device.SGDStep{P: p, G: floats(t, 4), M: m, Delta: delta, SGD: s}) // m = 4, p = 10 - 2
	s.First = false
	d.Do(&device.SGDStep{P: p, G: floats(t, 2), M: m, Delta: delta, SGD: s}) // m = 2 + 2 = 4, p = 8 - 2
	equal(t, "p", p, 6)
	equal(t, "delta", delta, -4)
	s.Nesterov = true
	d.Do(&device.SGDStep{P: p, G: floats(t, 2), M: m, Delta: delta, SGD: s}) // m = 2 + 2 = 4, update = 2 + 2 = 4, p = 6 - 2
	equal(t, "Nesterov", p, 4)
	plain := floats(t, 10)
	d.Do(&device.SGDStep{P: plain, G: floats(t, 4), SGD: device.SGD{Update: device.Update{LearningRate: 0.25, GradScale: 0.5}, WeightDecay: 0.2}})
	equal(t, "plain with decay", plain, 9) // 0.25 * (2 + 2)
}
