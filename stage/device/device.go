// Package device defines what a stage computes on: memory and about 25 operations. Layers are written once against
// Device; package ref is the plain Go form of every operation and the oracle that every other device is tested against
// (package stage/stagetest).
//
// Shapes in comments: B samples, T positions, D width (n_embd), H heads, S = D/H head width, V vocabulary, R rows (B*T),
// C columns. All matrices are row-major and contiguous.
package device

import (
	"math"
	"unsafe"
)

// Type is the element type of a Mem.
type Type uint8

// Element types.
const (
	F32 Type = iota
	I32
	BF16
)

// Bytes is the size of one element.
func (t Type) Bytes() int {
	if t == BF16 {
		return 2
	}
	return 4
}

// String names the type as job files and messages do.
func (t Type) String() string {
	switch t {
	case F32:
		return "f32"
	case I32:
		return "i32"
	case BF16:
		return "bf16"
	}
	return "invalid"
}

// Mem is a run of elements in the memory of one device. It is a small value: slicing allocates nothing. The zero Mem is
// "absent" where an operation documents an operand as optional.
type Mem struct {
	ptr unsafe.Pointer // first element; on a device whose memory is the host's, a host address
	n   int            // elements
	typ Type
}

// NewMem wraps n elements at ptr. Devices call it from Alloc; host devices also from views of boundary buffers.
func NewMem(ptr unsafe.Pointer, n int, typ Type) Mem { return Mem{ptr: ptr, n: n, typ: typ} }

// Len is the number of elements.
func (m Mem) Len() int { return m.n }

// Type is the element type.
func (m Mem) Type() Type { return m.typ }

// Bytes is the size in bytes.
func (m Mem) Bytes() int { return m.n * m.typ.Bytes() }

// Absent reports whether m is the zero Mem.
func (m Mem) Absent() bool { return m.ptr == nil }

// Pointer is the address of the first element.
func (m Mem) Pointer() unsafe.Pointer { return m.ptr }

// Slice is elements [from, from+n). It panics when they do not lie within m.
func (m Mem) Slice(from, n int) Mem {
	if from < 0 || n < 0 || from+n > m.n {
		panic("device: slice out of range")
	}
	return Mem{ptr: unsafe.Add(m.ptr, from*m.typ.Bytes()), n: n, typ: m.typ}
}

// As views the same memory as n elements of type t. It panics when they do not fit.
func (m Mem) As(t Type, n int) Mem {
	if n < 0 || n*t.Bytes() > m.Bytes() {
		panic("device: view beyond the memory")
	}
	return Mem{ptr: m.ptr, n: n, typ: t}
}

// F32 views the elements as host memory. Only for devices whose memory is the host's (Device.Host() is true).
func (m Mem) F32() []float32 {
	if m.typ != F32 {
		panic("device: F32 view of " + m.typ.String())
	}
	return unsafe.Slice((*float32)(m.ptr), m.n)
}

// I32 views the elements as host memory, as F32 does.
func (m Mem) I32() []int32 {
	if m.typ != I32 {
		panic("device: I32 view of " + m.typ.String())
	}
	return unsafe.Slice((*int32)(m.ptr), m.n)
}

// MatMul describes C (M,N) = [C +] op(A) (M,K) op(B) (K,N) [+ bias (N)].
type MatMul struct {
	M, N, K    int
	TransA     bool // A is stored (K,M)
	TransB     bool // B is stored (N,K)
	Accumulate bool // add to C instead of overwriting it; excludes Bias
	Bias       Mem  // optional: (N)
}

// Attention gives the shape of causal self-attention.
type Attention struct {
	B, T, H, S int // samples, positions, heads, head width
}

// Adam holds the coefficients of one Adam or AdamW step on one run of parameters.
// Kingma and Ba 2015, algorithm 1; Loshchilov and Hutter 2019, algorithm 2.
type Adam struct {
	LearningRate float32
	Beta1, Beta2 float32
	Epsilon      float32
	WeightDecay  float32
	Decoupled    bool    // AdamW: decay the parameter itself; else add WeightDecay*p to the gradient
	Correction1  float32 // 1 - Beta1^t
	Correction2  float32 // 1 - Beta2^t
	GradScale    float32 // the clip factor: the gradient used is GradScale * g
}

// SGD holds the coefficients of one SGD step, PyTorch's definition: m = Momentum m + g (m = g at the first step);
// the update is LearningRate * (Nesterov ? g + Momentum m : m).
type SGD struct {
	LearningRate float32
	Momentum     float32
	Nesterov     bool
	First        bool // the momentum buffer is still empty
	WeightDecay  float32
	GradScale    float32
}

// Derived are the coefficients that AdamStep applies to every element, computed in one place so that every device uses
// the same bits:
//
//	grad = GradScale g + coupled p;   m = Beta1 m + (1 - Beta1) grad;   v = Beta2 v + (1 - Beta2) grad^2
//	p = keep p - rate (m / (sqrt(v) / root + Epsilon))
func (a Adam) Derived() (coupled, keep, rate, root float32) {
	coupled, keep = a.WeightDecay, 1
	if a.Decoupled {
		coupled, keep = 0, 1-float32(a.LearningRate*a.WeightDecay)
	}
	return coupled, keep, a.LearningRate / a.Correction1, float32(math.Sqrt(float64(a.Correction2)))
}

// Threaded is implemented by devices that care which OS thread calls them. The executor calls Attach once, from the
// goroutine that it has locked to its OS thread, before the first operation; the device may bind that thread to processors
// (threads that it starts later inherit the binding). The executor must then end without unlocking the goroutine, so that
// the bound thread ends with it. Operations give the same results without Attach.
type Threaded interface {
	Attach() error
}

// Device computes. Its methods are called from one goroutine that stays on one OS thread (the device's executor), never
// concurrently. Operations may return before they have finished on a device with a queue of its own; Synchronize waits
// for all of them and returns the first failure. Operand shapes that disagree are a broken invariant and panic.
//
// Tolerances against package ref, relative to the largest magnitude of the result unless stated: element-wise and copies
// exact unless stated; reductions 1e-5; products and attention 1e-5 times sqrt(K).
type Device interface {
	// Name says what the device is, for people: "cpu (oneDNN 2.6.3, avx512_core_bf16, 1 thread)".
	Name() string
	// Host reports whether the device's memory is the host's, so that Mem.F32 and Wrap work.
	Host() bool
	// Alloc returns n zeroed elements, aligned to 64 bytes. The error names the bytes asked for and available.
	Alloc(t Type, n int) (Mem, error)
	// Free returns memory to the system: what Alloc returned, or an absent Mem, for which it does nothing. Slices of it must
	// not be used afterwards.
	Free(Mem)
	// Upload copies host bytes to dst; len(src) == dst.Bytes().
	Upload(dst Mem, src []byte)
	// Download copies src to host bytes; len(dst) == src.Bytes(). It waits for the operations before it.
	Download(dst []byte, src Mem)
	// Synchronize waits for all operations and returns the first failure since the last call.
	Synchronize() error
	// Close frees everything. The device must not be used afterwards; a second Close does nothing.
	Close() error

	// Zero sets x = 0.
	Zero(x Mem)
	// Copy sets y = x.
	Copy(y, x Mem)
	// Scale sets x = a x.
	Scale(x Mem, a float32)
	// Axpy sets y = y + a x, the product rounded before the sum (exact on every device).
	Axpy(y Mem, a float32, x Mem)
	// Lerp sets y = y + a (x - y), the product rounded before the sum; a = 1 sets y = x (exact on every device).
	Lerp(y Mem, a float32, x Mem)
	// Mul sets y = y * x, element by element.
	Mul(y, x Mem)
	// Add sets out = a + b; out may be a or b.
	Add(out, a, b Mem)
	// Dot is the sum of x[i] y[i], accumulated in float64 in a fixed order.
	Dot(x, y Mem) float64

	// MatMul computes C as m describes. C must not overlap A or B.
	MatMul(c, a, b Mem, m MatMul)
	// SumRows sets sum (C) += the sum over rows of x (R,C).
	SumRows(sum, x Mem, rows, columns int)

	// GELU sets y = gelu(x), the tanh form: 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))). Within 2e-6.
	GELU(y, x Mem)
	// GELUBackward sets dx = dy * gelu'(x); dx may be dy. Within 2e-6.
	GELUBackward(dx, dy, x Mem)

	// LayerNorm sets y (R,C) = (x - mean) * rstd * weight + bias per row, and stores mean (R) and rstd (R).
	LayerNorm(y, mean, rstd, x, weight, bias Mem, rows, columns int, epsilon float32)
	// LayerNormBackward sets dx (R,C); dx may be dy, not x. See LayerNormBackwardWeight for the other half.
	LayerNormBackward(dx, dy, x, mean, rstd, weight Mem, rows, columns int)
	// LayerNormBackwardWeight sets dweight (C) += sum dy * xhat, dbias (C) += sum dy.
	LayerNormBackwardWeight(dweight, dbias, dy, x, mean, rstd Mem, rows, columns int)

	// Embed sets out (B,T,D) = tokens[ids (B,T)] (V,D) + positions[t] (>=T,D).
	Embed(out, tokens, positions, ids Mem, b, t, d int)
	// EmbedBackward sets dtokens (V,D) += scatter(dout (B,T,D)) and dpositions (>=T,D) += sum over samples of dout.
	// Additions happen in the order of the rows.
	EmbedBackward(dtokens, dpositions, dout, ids Mem, b, t, d int)

	// AttentionSaved is how many float32 Attention keeps for its backward, per call.
	AttentionSaved(a Attention) int
	// Attention sets out (B,T,D) = softmax(mask(q k^T / sqrt(S))) v with q, k, v interleaved in qkv (B,T,3D), each D =
	// H*S, causal. saved (AttentionSaved) is written for AttentionBackward; absent when no backward follows.
	Attention(out, saved, qkv Mem, a Attention)
	// AttentionBackward sets dqkv (B,T,3D) from dout (B,T,D), the forward's qkv, out and saved.
	AttentionBackward(dqkv, dout, qkv, out, saved Mem, a Attention)

	// CrossEntropy reads logits (R,V) and targets (R), writes each row's loss to losses (R), in nats, and, unless
	// dlogits is absent, dlogits (R,V) = scale * (softmax - onehot); dlogits may be logits. A target of -1 is ignored: loss 0,
	// gradient 0. A logit that is not finite gives a loss that is not finite.
	CrossEntropy(losses, dlogits, logits, targets Mem, rows, vocabulary int, scale float32)

	// AdamStep updates p, m and v from g as Adam.Derived writes it, every product rounded before the sum (exact on every
	// device, so that the two copies of a tied parameter stay equal). Unless delta is absent, delta += (p after) - (p before).
	AdamStep(p, g, m, v, delta Mem, a Adam)
	// SGDStep updates p and, when Momentum is not 0, the momentum buffer m (exact on every device). delta as in AdamStep.
	SGDStep(p, g, m, delta Mem, s SGD)

	Random
}
