// Convolutions as products of matrices. Images have their channels last; a row of `windows` is a window, (Kernel,Kernel,In), and so are the rows
// of weights beside them. See device.ConvolutionShape.
#include "common.cuh"

#define CONVOLUTION long height, long width, long kernel, long stride, long padding, long oh, long ow

// lay_windows sets rows of windows; of a pixel `units` units are channels. What lies beside the image is 0. A thread copies a unit.
template <class Unit> DEVICE void lay_windows(Unit *windows, const Unit *x, CONVOLUTION, long units, long n) {
	for (EACH(i, n)) {
		long k = i / units % (kernel * kernel), window = i / units / (kernel * kernel);
		long r = window / ow % oh * stride - padding + k / kernel, c = window % ow * stride - padding + k % kernel;
		windows[i] = r < 0 || r >= height || c < 0 || c >= width ? Unit() : x[((window / ow / oh * height + r) * width + c) * units + i % units];
	}
}

struct alignas(16) Sixteen {
	unsigned parts[4];
};

KERNEL windows_of_16(Sixteen *windows, const Sixteen *x, CONVOLUTION, long units, long n) {
	lay_windows(windows, x, height, width, kernel, stride, padding, oh, ow, units, n);
}

KERNEL windows_of_4(unsigned *windows, const unsigned *x, CONVOLUTION, long units, long n) {
	lay_windows(windows, x, height, width, kernel, stride, padding, oh, ow, units, n);
}

KERNEL windows_of_2(unsigned short *windows, const unsigned short *x, CONVOLUTION, long units, long n) {
	lay_windows(windows, x, height, width, kernel, stride, padding, oh, ow, units, n);
}

// gather_windows sets dx to the sums of the gradients of windows, in the order of their elements. A thread has an element of dx.
KERNEL gather_windows(float *dx, const float *windows, CONVOLUTION, long in, long n) {
	for (EACH(i, n)) {
		long c = i / in % width, r = i / in / width % height, b = i / in / width / height;
		float sum = 0;
		for (long top = 0; top < kernel; top++) {
			long row = r + padding - top;
			if (row < 0 || row % stride || row / stride >= oh) continue;
			for (long left = 0; left < kernel; left++) {
				long column = c + padding - left;
				if (column < 0 || column % stride || column / stride >= ow) continue;
				sum += windows[((((b * oh + row / stride) * ow + column / stride) * kernel + top) * kernel + left) * in + i % in];
			}
		}
		dx[i] = sum;
	}
}

// lay_filter turns weights (Out,In,Kernel^2) to (Out,Kernel^2,In).
KERNEL lay_filter(void *filter, int filter16, const void *weight, int brain, long in, long window, long n) {
	In from(weight, brain);
	Out to(filter, filter16);
	for (EACH(i, n)) to.set(i, from[(i / in / window * in + i % in) * window + i / in % window]);
}

// add_filter adds sums (Out,Kernel^2,In) to dweight (Out,In,Kernel^2).
KERNEL add_filter(float *dweight, const float *sums, long in, long window, long n) {
	for (EACH(i, n)) dweight[i] += sums[(i / window / in * window + i % window) * in + i / window % in];
}
