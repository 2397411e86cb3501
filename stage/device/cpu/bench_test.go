package cpu

import (
	"fmt"
	"testing"

	"github.com/avgpipe/avgpipe/stage/device"
)

// bench opens a device and allocates operands of n elements, none of them zero.
type bench struct {
	*testing.B
	d *Device
}

func newBench(b *testing.B, threads int) *bench {
	b.Helper()
	d, err := Open(Config{Threads: threads})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = d.Close() })
	return &bench{B: b, d: d}
}

func (b *bench) alloc(typ device.Type, n int) device.Mem {
	b.Helper()
	m, err := b.d.Alloc(typ, n)
	if err != nil {
		b.Fatal(err)
	}
	return m
}

func (b *bench) floats(n int) device.Mem {
	m := b.alloc(device.F32, n)
	for i := range m.F32() {
		m.F32()[i] = float32(i%17)/8 - 1
	}
	return m
}

// run measures call, which moves bytes through its operands and computes flops.
func (b *bench) run(name string, bytes int, flops float64, call func()) {
	b.Run(name, func(b *testing.B) {
		call()
		b.SetBytes(int64(bytes))
		for b.Loop() {
			call()
		}
		if flops > 0 {
			b.ReportMetric(flops*float64(b.N)/b.Elapsed().Seconds()/1e9, "GFLOP/s")
		}
	})
}

// BenchmarkMatMul has the products of a GPT layer of width 512 on 1024 rows: forward, input gradient, weight gradient.
func BenchmarkMatMul(b *testing.B) {
	x := newBench(b, 1)
	for _, m := range []device.Product{
		{M: 1024, N: 1536, K: 512},
		{M: 1024, N: 2048, K: 512},
		{M: 1024, N: 512, K: 2048},
		{M: 1024, N: 8192, K: 512, TransB: true},
		{M: 1024, N: 512, K: 1536, TransB: true},
		{M: 1024, N: 512, K: 2048, TransB: true},
		{M: 512, N: 1536, K: 1024, TransA: true, Accumulate: true},
		{M: 512, N: 2048, K: 1024, TransA: true, Accumulate: true},
		{M: 2048, N: 512, K: 1024, TransA: true, Accumulate: true},
		{M: 256, N: 384, K: 128},
	} {
		c, a, w := x.floats(m.M*m.N), x.floats(m.M*m.K), x.floats(m.K*m.N)
		if !m.TransB && !m.Accumulate {
			m.Bias = x.floats(m.N)
		}
		name := fmt.Sprintf("M=%d,N=%d,K=%d,TransA=%v,TransB=%v,Accumulate=%v", m.M, m.N, m.K, m.TransA, m.TransB, m.Accumulate)
		x.run(name, 4*(m.M*m.N+m.M*m.K+m.K*m.N), 2*float64(m.M)*float64(m.N)*float64(m.K), func() { x.d.Do(&device.MatMul{C: c, A: a, B: w, Product: m}) })
	}
}

// BenchmarkFlat has the vector operations on 16 MiB, beyond the second-level cache.
func BenchmarkFlat(b *testing.B) {
	const n = 4 << 20
	x := newBench(b, 1)
	y, z, w, m, v := x.floats(n), x.floats(n), x.floats(n), x.floats(n), x.floats(n)
	x.d.Do(&device.Mul{Y: v, X: v})
	adam := device.Adam{Update: device.Update{LearningRate: 1e-3, Correction1: 1, Correction2: 1, GradScale: 1}, Beta1: 0.9, Beta2: 0.99, Epsilon: 1e-8}
	sgd := device.SGD{Update: device.Update{LearningRate: 1e-3, GradScale: 1}, Momentum: 0.9}
	x.run("Zero", 4*n, 0, func() { x.d.Do(&device.Zero{X: w}) })
	x.run("Copy", 8*n, 0, func() { x.d.Do(&device.Copy{Y: w, X: y}) })
	x.run("Scale", 8*n, 0, func() { x.d.Do(&device.Scale{X: w, A: 1}) })
	x.run("Axpy", 12*n, 0, func() { x.d.Do(&device.Axpy{Y: w, A: 1e-9, X: y}) })
	x.run("Lerp", 12*n, 0, func() { x.d.Do(&device.Lerp{Y: w, A: 0.5, X: y}) })
	ones := x.floats(n)
	for i := range ones.F32() {
		ones.F32()[i] = 1 // any other factor would lead to denormal numbers, which are slow
	}
	x.run("Mul", 12*n, 0, func() { x.d.Do(&device.Mul{Y: w, X: ones}) })
	sum := x.alloc(device.F64, 1)
	x.run("SquaredNorm", 4*n, 0, func() { x.d.Do(&device.SquaredNorm{Sum: sum, X: z}) })
	x.run("AdamStep", 28*n, 0, func() { x.d.Do(&device.AdamStep{P: y, G: z, M: m, V: v, Adam: adam}) })
	x.run("AdamStep,delta", 36*n, 0, func() { x.d.Do(&device.AdamStep{P: y, G: z, M: m, V: v, Delta: w, Adam: adam}) })
	x.run("SGDStep", 20*n, 0, func() { x.d.Do(&device.SGDStep{P: y, G: z, M: m, SGD: sgd}) })
}

// BenchmarkUpdate has a step of AdamW on 30M parameters whose products read copies in BF16, in the passes over memory that it took and in
// one; and a copy, which says how fast this memory is. The bytes are those that each must move.
func BenchmarkUpdate(b *testing.B) {
	const n = 30 << 20
	x := newBench(b, 1)
	step := device.AdamStep{P: x.floats(n), G: x.floats(n), M: x.floats(n), V: x.floats(n), Adam: device.Adam{
		Update: device.Update{LearningRate: 1e-3, Correction1: 1, Correction2: 1, GradScale: 1}, Beta1: 0.9, Beta2: 0.99, Epsilon: 1e-8, WeightDecay: 0.1, Decoupled: true,
	}}
	x.d.Do(&device.Mul{Y: step.V, X: step.V})
	copy16, sum := x.alloc(device.BF16, n), x.alloc(device.F64, 1)
	x.run("copy", 8*n, 0, func() { x.d.Do(&device.Copy{Y: step.M, X: step.G}) })
	x.run("three passes", 38*n, 0, func() {
		x.d.Do(&device.SquaredNorm{Sum: sum, X: step.G})
		x.d.Do(&step)
		x.d.Do(&device.Copy{Y: copy16, X: step.P})
	})
	one := step
	one.Copy16 = copy16
	x.run("two passes", 34*n, 0, func() {
		x.d.Do(&device.SquaredNorm{Sum: sum, X: step.G})
		x.d.Do(&one)
	})
	one.Sum = sum
	x.run("one pass", 30*n, 0, func() { x.d.Do(&one) })
}

// BenchmarkLayer has the other operations of a GPT layer of width 512 on 1024 rows.
func BenchmarkLayer(b *testing.B) {
	const rows, columns, t, vocabulary = 1024, 512, 256, 8192
	const n = rows * columns
	x := newBench(b, 1)
	in, out, grad := x.floats(4*n), x.floats(4*n), x.floats(4*n)
	mean, rstd, weight, bias := x.floats(rows), x.floats(rows), x.floats(columns), x.floats(columns)
	narrow, other, third := in.Slice(0, n), out.Slice(0, n), grad.Slice(0, n)
	x.run("GELU", 2*4*4*n, 0, func() { x.d.Do(&device.Unary{Y: out, X: in, Function: device.GELU}) })
	x.run("GELUBackward", 3*4*4*n, 0, func() { x.d.Do(&device.UnaryBackward{DX: out, DY: grad, X: in, Function: device.GELU}) })
	x.run("Add", 3*4*n, 0, func() { x.d.Do(&device.Add{Out: other, A: narrow, B: third}) })
	x.run("LayerNorm", 2*4*n, 0, func() {
		x.d.Do(&device.Norm{Y: other, Mean: mean, Rstd: rstd, X: narrow, Weight: weight, Bias: bias, Epsilon: 1e-5})
	})
	x.run("LayerNormBackward", 3*4*n, 0, func() {
		x.d.Do(&device.NormBackward{DX: other, DY: third, X: narrow, Mean: mean, Rstd: rstd, Weight: weight})
	})
	x.run("LayerNormBackwardWeight", 2*4*n, 0, func() {
		x.d.Do(&device.NormBackwardWeight{DWeight: weight, DBias: bias, DY: third, X: narrow, Mean: mean, Rstd: rstd})
	})
	wide := x.floats(4 * columns)
	x.run("SumRows", 4*4*n, 0, func() { x.d.Do(&device.SumRows{Sum: wide, X: in}) })
	tokens, positions, ids := x.floats(vocabulary*columns), x.floats(t*columns), x.alloc(device.I32, rows)
	for i := range ids.I32() {
		ids.I32()[i] = int32(i * 37 % vocabulary)
	}
	x.run("Embed", 3*4*n, 0, func() { x.d.Do(&device.Embed{Out: narrow, Tokens: tokens, Positions: positions, IDs: ids, T: t}) })
	x.run("EmbedBackward", 5*4*n, 0, func() {
		x.d.Do(&device.EmbedBackward{DTokens: tokens, DPositions: positions, DOut: narrow, IDs: ids, T: t})
	})
	logits, dlogits, losses := x.floats(rows*vocabulary), x.floats(rows*vocabulary), x.floats(rows)
	x.run("CrossEntropy", 2*4*rows*vocabulary, 0, func() {
		x.d.Do(&device.CrossEntropy{Losses: losses, DLogits: dlogits, Logits: logits, Targets: ids, Scale: 1})
	})
	bytes := x.floats(rows * 256)
	small := x.alloc(device.I32, rows)
	x.run("CrossEntropy,bytes", 2*4*rows*256, 0, func() {
		x.d.Do(&device.CrossEntropy{Losses: losses, DLogits: bytes, Logits: bytes, Targets: small, Scale: 1})
	})
}

// BenchmarkAttention has 1024 rows of width 512, or a sequence of 4096; the flops are those of what is seen, two products forward and
// five backward.
func BenchmarkAttention(b *testing.B) {
	for _, threads := range []int{1, 2} {
		x := newBench(b, threads)
		for _, typ := range []device.Type{device.F32, device.BF16} {
			for _, t := range []int{64, 128, 256, 512, 1024, 4096} {
				x.attention(fmt.Sprintf("threads=%d,%v,T=%d", threads, typ, t), typ, device.AttentionShape{B: max(1024/t, 1), T: t, H: 8, S: 64})
			}
			x.attention(fmt.Sprintf("threads=%d,%v,T=4096,one head", threads, typ), typ, device.AttentionShape{B: 1, T: 4096, H: 1, S: 64})
		}
	}
}

func (b *bench) attention(name string, typ device.Type, a device.AttentionShape) {
	n := a.B * a.T * a.H * a.S
	var m [8]device.Mem
	for i := range m {
		m[i] = b.alloc(typ, n)
		b.d.Do(&device.Copy{Y: m[i], X: b.floats(n)})
	}
	saved := b.floats(a.Saved())
	flops := float64(a.B) * float64(a.H) * float64(a.T) * float64(a.T+1) * float64(a.S)
	b.run("forward,"+name, 4*n*typ.Bytes(), 2*flops, func() {
		b.d.Do(&device.Attention{Out: m[0], Saved: saved, Q: m[1], K: m[2], V: m[3], AttentionShape: a})
	})
	b.run("backward,"+name, 8*n*typ.Bytes(), 5*flops, func() {
		b.d.Do(&device.AttentionBackward{
			DQ: m[4], DK: m[5], DV: m[6], DOut: m[7], Q: m[1], K: m[2], V: m[3], Out: m[0], Saved: saved, AttentionShape: a,
		})
	})
}
