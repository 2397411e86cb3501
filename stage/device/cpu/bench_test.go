package cpu

import (
	"fmt"
	"testing"

	"github.com/avgpipe/avgpipe/stage/device"
)

// bench opens a one-thread device and allocates operands of n elements, none of them zero.
type bench struct {
	*testing.B
	d *Device
}

func newBench(b *testing.B) *bench {
	b.Helper()
	d, err := Open(Config{Threads: 1})
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
	x := newBench(b)
	for _, m := range []device.MatMul{
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
		x.run(name, 4*(m.M*m.N+m.M*m.K+m.K*m.N), 2*float64(m.M)*float64(m.N)*float64(m.K), func() { x.d.MatMul(c, a, w, m) })
	}
}

// BenchmarkFlat has the vector operations on 16 MiB, beyond the second-level cache.
func BenchmarkFlat(b *testing.B) {
	const n = 4 << 20
	x := newBench(b)
	y, z, w, m, v := x.floats(n), x.floats(n), x.floats(n), x.floats(n), x.floats(n)
	x.d.Mul(v, v)
	adam := device.Adam{LearningRate: 1e-3, Beta1: 0.9, Beta2: 0.99, Epsilon: 1e-8, Correction1: 1, Correction2: 1, GradScale: 1}
	sgd := device.SGD{LearningRate: 1e-3, Momentum: 0.9, GradScale: 1}
	x.run("Zero", 4*n, 0, func() { x.d.Zero(w) })
	x.run("Copy", 8*n, 0, func() { x.d.Copy(w, y) })
	x.run("Scale", 8*n, 0, func() { x.d.Scale(w, 1) })
	x.run("Axpy", 12*n, 0, func() { x.d.Axpy(w, 1e-9, y) })
	x.run("Lerp", 12*n, 0, func() { x.d.Lerp(w, 0.5, y) })
	ones := x.floats(n)
	for i := range ones.F32() {
		ones.F32()[i] = 1 // any other factor would lead to denormal numbers, which are slow
	}
	x.run("Mul", 12*n, 0, func() { x.d.Mul(w, ones) })
	x.run("Dot", 8*n, 0, func() { x.d.Dot(y, z) })
	x.run("AdamStep", 28*n, 0, func() { x.d.AdamStep(y, z, m, v, device.Mem{}, adam) })
	x.run("AdamStep,delta", 36*n, 0, func() { x.d.AdamStep(y, z, m, v, w, adam) })
	x.run("SGDStep", 20*n, 0, func() { x.d.SGDStep(y, z, m, device.Mem{}, sgd) })
}

// BenchmarkLayer has the other operations of a GPT layer of width 512 on 1024 rows.
func BenchmarkLayer(b *testing.B) {
	const rows, columns, t, vocabulary = 1024, 512, 256, 8192
	const n = rows * columns
	x := newBench(b)
	in, out, grad := x.floats(4*n), x.floats(4*n), x.floats(4*n)
	mean, rstd, weight, bias := x.floats(rows), x.floats(rows), x.floats(columns), x.floats(columns)
	narrow, other, third := in.Slice(0, n), out.Slice(0, n), grad.Slice(0, n)
	x.run("GELU", 2*4*4*n, 0, func() { x.d.GELU(out, in) })
	x.run("GELUBackward", 3*4*4*n, 0, func() { x.d.GELUBackward(out, grad, in) })
	x.run("Add", 3*4*n, 0, func() { x.d.Add(other, narrow, third) })
	x.run("LayerNorm", 2*4*n, 0, func() { x.d.LayerNorm(other, mean, rstd, narrow, weight, bias, rows, columns, 1e-5) })
	x.run("LayerNormBackward", 3*4*n, 0, func() {
		x.d.LayerNormBackward(other, third, narrow, mean, rstd, weight, device.Mem{}, rows, columns)
	})
	x.run("LayerNormBackwardWeight", 2*4*n, 0, func() { x.d.LayerNormBackwardWeight(weight, bias, third, narrow, mean, rstd, rows, columns) })
	wide := x.floats(4 * columns)
	x.run("SumRows", 4*4*n, 0, func() { x.d.SumRows(wide, in, rows, 4*columns) })
	tokens, positions, ids := x.floats(vocabulary*columns), x.floats(t*columns), x.alloc(device.I32, rows)
	for i := range ids.I32() {
		ids.I32()[i] = int32(i * 37 % vocabulary)
	}
	x.run("Embed", 3*4*n, 0, func() { x.d.Embed(narrow, tokens, positions, ids, rows/t, t, columns) })
	x.run("EmbedBackward", 5*4*n, 0, func() { x.d.EmbedBackward(tokens, positions, narrow, ids, rows/t, t, columns) })
	logits, dlogits, losses := x.floats(rows*vocabulary), x.floats(rows*vocabulary), x.floats(rows)
	x.run("CrossEntropy", 2*4*rows*vocabulary, 0, func() { x.d.CrossEntropy(losses, dlogits, logits, ids, rows, vocabulary, 1) })
	bytes := x.floats(rows * 256)
	small := x.alloc(device.I32, rows)
	x.run("CrossEntropy,bytes", 2*4*rows*256, 0, func() { x.d.CrossEntropy(losses, bytes, bytes, small, rows, 256, 1) })
}

// BenchmarkAttention has 1024 rows of width 512; the flops are those of the causal half, two products forward and five
// backward.
func BenchmarkAttention(b *testing.B) {
	x := newBench(b)
	for _, s := range []int{32, 64} {
		for _, t := range []int{64, 128, 256, 512, 1024} {
			a := device.Attention{B: 1024 / t, T: t, H: 512 / s, S: s}
			n := a.B * a.T * a.H * a.S
			q, k, v, dq, dk, dv := x.floats(n), x.floats(n), x.floats(n), x.floats(n), x.floats(n), x.floats(n)
			out, dout, saved := x.floats(n), x.floats(n), x.floats(x.d.AttentionSaved(a))
			flops := float64(a.B) * float64(a.H) * float64(t) * float64(t+1) * float64(s)
			x.run(fmt.Sprintf("forward,T=%d,S=%d", t, s), 16*n, 2*flops, func() { x.d.Attention(out, saved, q, k, v, a) })
			x.run(fmt.Sprintf("backward,T=%d,S=%d", t, s), 32*n, 5*flops, func() { x.d.AttentionBackward(dq, dk, dv, dout, q, k, v, out, saved, a) })
		}
	}
}
