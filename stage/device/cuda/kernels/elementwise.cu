// Operations on runs of elements, and functions of single ones.
#include "common.cuh"

KERNEL convert(void *y, int y16, const void *x, int x16, long n) {
	Out out(y, y16);
	In in(x, x16);
	for (EACH(i, n)) out.set(i, in[i]);
}

KERNEL scale(float *x, float a, const long *now, long n) {
	latest(now, a);
	for (EACH(i, n)) x[i] *= a;
}

KERNEL axpy(float *y, float a, const long *now, const float *x, long n) {
	latest(now, a);
	for (EACH(i, n)) y[i] += a * x[i];
}

KERNEL lerp(float *y, float a, const float *x, long n) {
	for (EACH(i, n)) y[i] += a * (x[i] - y[i]);
}

KERNEL mul(float *y, const float *x, long n) {
	for (EACH(i, n)) y[i] *= x[i];
}

KERNEL add(void *out, int out16, const void *a, int a16, const void *b, int b16, long n) {
	Out sum(out, out16);
	In first(a, a16), second(b, b16);
	for (EACH(i, n)) sum.set(i, first[i] + second[i]);
}

// The functions of device.Function, in its order.
enum { GELU, GELU_ERF, TANH, RELU };

// gelu_tanh is tanh(sqrt(2/pi) (x + 0.044715 x^3)) (Hendrycks and Gimpel 2016, section 2).
DEVICE float gelu_tanh(float x) { return tanhf(0.7978845608f * (x + 0.044715f * x * x * x)); }

// normal is the cumulative probability of the standard normal distribution; erfc keeps the digits of its lower tail.
DEVICE float normal(float x) { return 0.5f * erfcf(-0.7071067812f * x); }

DEVICE float value(int function, float x) {
	switch (function) {
	case GELU: return 0.5f * x * (1 + gelu_tanh(x));
	case GELU_ERF: return x * normal(x);
	case TANH: return tanhf(x);
	}
	return x <= 0 ? 0 : x;
}

// gradient is that of x, or of the result for tanh, from that of the result.
DEVICE float gradient(int function, float dy, float x) {
	switch (function) {
	case GELU: {
		float t = gelu_tanh(x), inner = 0.7978845608f * (1 + 3 * 0.044715f * x * x);
		return dy * (0.5f * (1 + t) + 0.5f * x * (1 - t * t) * inner);
	}
	case GELU_ERF: return dy * (normal(x) + x * expf(-0.5f * x * x) * 0.3989422804f);
	case TANH: return dy * (1 - x * x);
	}
	return x > 0 ? dy : 0;
}

KERNEL unary(void *y, int y16, const void *x, int x16, int function, long n) {
	Out out(y, y16);
	In in(x, x16);
	for (EACH(i, n)) out.set(i, value(function, in[i]));
}

KERNEL unary_backward(void *dx, int dx16, const void *dy, int dy16, const void *x, int x16, int function, long n) {
	Out out(dx, dx16);
	In in(x, x16), dout(dy, dy16);
	for (EACH(i, n)) out.set(i, gradient(function, dout[i], in[i]));
}

DEVICE float sigmoid(float x) { return 1 / (1 + expf(-x)); }

KERNEL swiglu(void *y, const void *gate, const void *up, int brain, long n) {
	Out out(y, brain);
	In gates(gate, brain), ups(up, brain);
	for (EACH(i, n)) out.set(i, gates[i] * sigmoid(gates[i]) * ups[i]);
}

KERNEL swiglu_backward(void *dgate, void *dup, const void *dy, const void *gate, const void *up, int brain, long n) {
	Out dgates(dgate, brain), dups(dup, brain);
	In dout(dy, brain), gates(gate, brain), ups(up, brain);
	for (EACH(i, n)) {
		float g = dout[i], x = gates[i], s = sigmoid(x), other = ups[i];
		dgates.set(i, g * other * s * (1 + x * (1 - s)));
		dups.set(i, g * x * s);
	}
}
