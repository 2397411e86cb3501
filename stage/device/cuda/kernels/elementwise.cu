// Operations on runs of elements, and functions of single ones.
#include "pack.cuh"

KERNEL convert(void *y, int y16, const void *x, int x16, long n) {
	map<8>(Out(y, y16), n, [](float v) { return v; }, In(x, x16));
}

KERNEL scale(float *x, float a, const long *now, long n) {
	latest(now, a);
	map<4>(Out(x, 0), n, [=](float v) { return v * a; }, In(x, 0));
}

KERNEL axpy(float *y, float a, const long *now, const float *x, long n) {
	latest(now, a);
	map<4>(Out(y, 0), n, [=](float v, float w) { return v + a * w; }, In(y, 0), In(x, 0));
}

KERNEL lerp(float *y, float a, const float *x, long n) {
	map<4>(Out(y, 0), n, [=](float v, float w) { return v + a * (w - v); }, In(y, 0), In(x, 0));
}

KERNEL mul(float *y, const float *x, long n) {
	map<4>(Out(y, 0), n, [](float v, float w) { return v * w; }, In(y, 0), In(x, 0));
}

KERNEL add(void *out, int out16, const void *a, int a16, const void *b, int b16, long n) {
	map<8>(Out(out, out16), n, [](float v, float w) { return v + w; }, In(a, a16), In(b, b16));
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
	map<4>(Out(y, y16), n, [=](float v) { return value(function, v); }, In(x, x16));
}

KERNEL unary_backward(void *dx, int dx16, const void *dy, int dy16, const void *x, int x16, int function, long n) {
	map<4>(Out(dx, dx16), n, [=](float g, float v) { return gradient(function, g, v); }, In(dy, dy16), In(x, x16));
}

DEVICE float sigmoid(float x) { return 1 / (1 + expf(-x)); }

KERNEL swiglu(void *y, const void *gate, const void *up, int brain, long n) {
	map<4>(Out(y, brain), n, [](float gate, float up) { return gate * sigmoid(gate) * up; }, In(gate, brain), In(up, brain));
}

KERNEL swiglu_backward(void *dgate, void *dup, const void *dy, const void *gate, const void *up, int brain, long n) {
	for (EACH_PACK(4, i, n)) {
		Pack<4> dout = load<4>(In(dy, brain), i, n), gates = load<4>(In(gate, brain), i, n), ups = load<4>(In(up, brain), i, n);
		Pack<4> dgates, dups;
		UNROLL for (int c = 0; c < 4; c++) {
			float g = dout.x[c], x = gates.x[c], s = sigmoid(x);
			dgates.x[c] = g * ups.x[c] * s * (1 + x * (1 - s));
			dups.x[c] = g * x * s;
		}
		store(Out(dgate, brain), dgates, i, n);
		store(Out(dup, brain), dups, i, n);
	}
}
