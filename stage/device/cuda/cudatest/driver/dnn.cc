// cuDNN's convolutions as loops, for tests: what descriptors say is checked, operands and work spaces lie on the device, and results come when the
// stream is waited for.
#include <stdlib.h>
#include <string.h>

#include "driver.h"

namespace {

enum Status { success = 0, bad_parameter = 2000, unsupported = 3000, failed = 5000 };

// Tensor is an image, or weights: dimensions in the order that the library is told, whatever the format.
struct Tensor {
	int format = -1, type = -1, n = 0, c = 0, h = 0, w = 0;

	size_t size() const { return (size_t)n * c * h * w; }
	bool last() const { return format == 1 && type == 0 && size() > 0; } // floats with their channels last
	size_t at(int i, int j, int y, int x) const { return (((size_t)i * h + y) * w + x) * c + j; }
};

struct Convolution {
	int pad_h = -1, pad_w = -1, stride_h = 0, stride_w = 0, dilation_h = 0, dilation_w = 0, mode = -1, compute = -1, math = 0;
};

struct Dnn {
	CUstream stream = nullptr;
};

const int deterministic = 1;

size_t version_of_library = 90100;

// check is 0 where the shapes fit each other and the algorithm is one that these loops stand for.
int check(const Tensor &x, const Tensor &w, const Convolution &c, const Tensor &y, int algorithm) {
	if (!x.last() || !w.last() || !y.last() || c.mode != 1 || c.compute != 0 || c.dilation_h != 1 || c.dilation_w != 1) return bad_parameter;
	if (c.stride_h < 1 || c.stride_w < 1 || c.pad_h < 0 || c.pad_w < 0 || x.n != y.n || x.c != w.c || y.c != w.n) return bad_parameter;
	if (y.h != (x.h + 2 * c.pad_h - w.h) / c.stride_h + 1 || y.w != (x.w + 2 * c.pad_w - w.w) / c.stride_w + 1) return bad_parameter;
	// As the library, these loops do not take everything.
	return algorithm == deterministic && w.h < 7 ? success : unsupported;
}

size_t workspace(const Tensor &w) { return 4 * w.size() + 100; }

// factor is what is multiplied: TF32 has 10 bits of mantissa.
float factor(const Convolution &c, float v) {
	if (c.math == 3) return v;
	uint32_t bits;
	memcpy(&bits, &v, sizeof v);
	bits &= 0xffffe000;
	memcpy(&v, &bits, sizeof v);
	return v;
}

// each calls visit with the places of x, w and y that meet.
template <class Visit> void each(const Tensor &x, const Tensor &w, const Convolution &c, const Tensor &y, Visit visit) {
	for (int n = 0; n < y.n; n++)
		for (int row = 0; row < y.h; row++)
			for (int column = 0; column < y.w; column++)
				for (int out = 0; out < y.c; out++)
					for (int top = 0; top < w.h; top++)
						for (int left = 0; left < w.w; left++) {
							int r = row * c.stride_h - c.pad_h + top, s = column * c.stride_w - c.pad_w + left;
							if (r < 0 || r >= x.h || s < 0 || s >= x.w) continue;
							for (int in = 0; in < x.c; in++) visit(x.at(n, in, r, s), w.at(out, in, top, left), y.at(n, out, row, column));
						}
}

// blend is alpha * sums + beta * to, where beta is 0 whatever to holds.
void blend(float *to, const std::vector<float> &sums, float alpha, float beta) {
	for (size_t i = 0; i < sums.size(); i++) to[i] = alpha * sums[i] + (beta != 0 ? beta * to[i] : 0);
}

// hand checks where operands lie, of the work space too, which the call overwrites.
int hand(const char *name, Dnn *dnn, const Tensor &w, void *space, size_t bytes,
         std::vector<std::pair<const void *, const Tensor *>> operands, std::function<void()> task) {
	for (auto &operand : operands) {
		if (!lies_on_device(operand.first, 4 * operand.second->size())) return bad_parameter;
	}
	if (w.h == 5) return unsupported; // as the library may, after it has said how much it needs
	if (bytes < workspace(w) || !lies_on_device(space, bytes)) return bad_parameter;
	return hand_over(name, dnn->stream, [=] {
		memset(space, 0xff, bytes);
		task();
		return CUDA_SUCCESS;
	}) == CUDA_SUCCESS ? success : failed;
}

} // namespace

EXPORT void fake_dnn_version(long version) { version_of_library = version; }

EXPORT size_t cudnnGetVersion() { return version_of_library; }

EXPORT const char *cudnnGetErrorString(int status) { return status == unsupported ? "CUDNN_STATUS_NOT_SUPPORTED" : "CUDNN_STATUS_BAD_PARAM"; }

EXPORT int cudnnCreate(Dnn **to) {
	*to = new Dnn();
	return success;
}

EXPORT int cudnnDestroy(Dnn *dnn) {
	delete dnn;
	return success;
}

EXPORT int cudnnSetStream(Dnn *dnn, CUstream stream) {
	dnn->stream = stream;
	return success;
}

#define DESCRIPTOR(name, type)                 \
	EXPORT int cudnnCreate##name(type **to) {    \
		*to = new type();                          \
		return success;                            \
	}                                            \
	EXPORT int cudnnDestroy##name(type *which) { \
		delete which;                              \
		return success;                            \
	}

DESCRIPTOR(TensorDescriptor, Tensor)
DESCRIPTOR(FilterDescriptor, Tensor)
DESCRIPTOR(ConvolutionDescriptor, Convolution)

EXPORT int cudnnSetTensor4dDescriptor(Tensor *t, int format, int type, int n, int c, int h, int w) {
	*t = {format, type, n, c, h, w};
	return success;
}

EXPORT int cudnnSetFilter4dDescriptor(Tensor *t, int type, int format, int k, int c, int h, int w) {
	*t = {format, type, k, c, h, w};
	return success;
}

EXPORT int cudnnSetConvolution2dDescriptor(Convolution *to, int pad_h, int pad_w, int u, int v, int dilation_h, int dilation_w, int mode, int compute) {
	*to = {pad_h, pad_w, u, v, dilation_h, dilation_w, mode, compute, 0};
	return success;
}

EXPORT int cudnnSetConvolutionMathType(Convolution *to, int math) {
	to->math = math;
	return success;
}

EXPORT int cudnnGetConvolutionForwardWorkspaceSize(Dnn *, Tensor *x, Tensor *w, Convolution *c, Tensor *y, int algorithm, size_t *bytes) {
	*bytes = workspace(*w);
	return check(*x, *w, *c, *y, algorithm);
}

EXPORT int cudnnGetConvolutionBackwardDataWorkspaceSize(Dnn *, Tensor *w, Tensor *dy, Convolution *c, Tensor *dx, int algorithm, size_t *bytes) {
	*bytes = workspace(*w);
	return check(*dx, *w, *c, *dy, algorithm);
}

EXPORT int cudnnGetConvolutionBackwardFilterWorkspaceSize(Dnn *, Tensor *x, Tensor *dy, Convolution *c, Tensor *dw, int algorithm, size_t *bytes) {
	*bytes = workspace(*dw);
	return check(*x, *dw, *c, *dy, algorithm);
}

EXPORT int cudnnConvolutionForward(Dnn *dnn, const float *alpha, Tensor *x_of, const float *x, Tensor *w_of, const float *w, Convolution *c_of,
                                   int algorithm, void *space, size_t bytes, const float *beta, Tensor *y_of, float *y) {
	Tensor xs = *x_of, ws = *w_of, ys = *y_of;
	Convolution c = *c_of;
	float a = *alpha, b = *beta;
	if (int status = check(xs, ws, c, ys, algorithm)) return status;
	return hand(__func__, dnn, ws, space, bytes, {{x, &xs}, {w, &ws}, {y, &ys}}, [=] {
		std::vector<float> sums(ys.size());
		each(xs, ws, c, ys, [&](size_t i, size_t j, size_t k) { sums[k] += factor(c, x[i]) * factor(c, w[j]); });
		blend(y, sums, a, b);
	});
}

EXPORT int cudnnConvolutionBackwardData(Dnn *dnn, const float *alpha, Tensor *w_of, const float *w, Tensor *dy_of, const float *dy,
                                        Convolution *c_of, int algorithm, void *space, size_t bytes, const float *beta, Tensor *dx_of, float *dx) {
	Tensor xs = *dx_of, ws = *w_of, ys = *dy_of;
	Convolution c = *c_of;
	float a = *alpha, b = *beta;
	if (int status = check(xs, ws, c, ys, algorithm)) return status;
	return hand(__func__, dnn, ws, space, bytes, {{dx, &xs}, {w, &ws}, {dy, &ys}}, [=] {
		std::vector<float> sums(xs.size());
		each(xs, ws, c, ys, [&](size_t i, size_t j, size_t k) { sums[i] += factor(c, w[j]) * factor(c, dy[k]); });
		blend(dx, sums, a, b);
	});
}

EXPORT int cudnnConvolutionBackwardFilter(Dnn *dnn, const float *alpha, Tensor *x_of, const float *x, Tensor *dy_of, const float *dy,
                                          Convolution *c_of, int algorithm, void *space, size_t bytes, const float *beta, Tensor *dw_of, float *dw) {
	Tensor xs = *x_of, ws = *dw_of, ys = *dy_of;
	Convolution c = *c_of;
	float a = *alpha, b = *beta;
	if (int status = check(xs, ws, c, ys, algorithm)) return status;
	return hand(__func__, dnn, ws, space, bytes, {{x, &xs}, {dw, &ws}, {dy, &ys}}, [=] {
		std::vector<float> sums(ws.size());
		each(xs, ws, c, ys, [&](size_t i, size_t j, size_t k) { sums[j] += factor(c, x[i]) * factor(c, dy[k]); });
		blend(dw, sums, a, b);
	});
}
