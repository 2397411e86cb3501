// Convolutions without a library, pools and norms of groups. Images have their channels last.
#include "common.cuh"

// The parameters of a convolution; see device.ConvolutionShape.
#define CONVOLUTION long height, long width, long in, long out, long kernel, long stride, long padding, long oh, long ow, long n

// A thread computes an element of y.
KERNEL convolution(float *y, const void *x, const void *weight, int brain, const float *bias, CONVOLUTION) {
	In image(x, brain), weights(weight, brain);
	for (EACH(i, n)) {
		long o = i % out, column = i / out % ow, row = i / out / ow % oh, b = i / out / ow / oh;
		float sum = bias ? bias[o] : 0;
		for (long k = 0; k < kernel * kernel; k++) {
			long r = row * stride - padding + k / kernel, c = column * stride - padding + k % kernel;
			if (r < 0 || r >= height || c < 0 || c >= width) continue;
			for (long j = 0; j < in; j++) {
				sum = fmaf(image[((b * height + r) * width + c) * in + j], weights[(o * in + j) * kernel * kernel + k], sum);
			}
		}
		y[i] = sum;
	}
}

// A thread computes an element of dx, from the windows that it lies in.
KERNEL convolution_backward(float *dx, const void *dy, const void *weight, int brain, CONVOLUTION) {
	In gradient(dy, brain), weights(weight, brain);
	for (EACH(i, n)) {
		long j = i % in, c = i / in % width, r = i / in / width % height, b = i / in / width / height;
		float sum = 0;
		for (long k = 0; k < kernel * kernel; k++) {
			long row = r + padding - k / kernel, column = c + padding - k % kernel;
			if (row < 0 || column < 0 || row % stride || column % stride || row / stride >= oh || column / stride >= ow) continue;
			for (long o = 0; o < out; o++) {
				sum = fmaf(gradient[((b * oh + row / stride) * ow + column / stride) * out + o], weights[(o * in + j) * kernel * kernel + k], sum);
			}
		}
		dx[i] = sum;
	}
}

// A block computes an element of dweight, from n samples.
KERNEL convolution_backward_weight(float *dweight, const void *dy, const void *x, int brain, CONVOLUTION) {
	In gradient(dy, brain), image(x, brain);
	long i = blockIdx.x, k = i % (kernel * kernel), j = i / (kernel * kernel) % in, o = i / (kernel * kernel) / in;
	float sum = 0;
	for (long at = threadIdx.x; at < n * oh * ow; at += blockDim.x) {
		long column = at % ow, row = at / ow % oh, b = at / ow / oh;
		long r = row * stride - padding + k / kernel, c = column * stride - padding + k % kernel;
		if (r < 0 || r >= height || c < 0 || c >= width) continue;
		sum = fmaf(gradient[at * out + o], image[((b * height + r) * width + c) * in + j], sum);
	}
	sum = block_sum(sum);
	if (threadIdx.x == 0) dweight[i] += sum;
}

struct Pool {
	long height, width, channels, kernel, stride, padding, oh, ow;

	// winner is where the largest element of a window lies: the first of equals, and the first NaN before all.
	__device__ long winner(const float *x, long b, long row, long column, long c) const {
		long at = -1;
		for (long k = 0; k < kernel * kernel; k++) {
			long r = row * stride - padding + k / kernel, s = column * stride - padding + k % kernel;
			if (r < 0 || r >= height || s < 0 || s >= width) continue;
			long i = ((b * height + r) * width + s) * channels + c;
			if (at < 0 || x[i] > x[at] || (x[i] != x[i] && x[at] == x[at])) at = i;
		}
		return at;
	}
};

#define POOL long height, long width, long channels, long kernel, long stride, long padding, long oh, long ow, long n
#define POOL_OF_KERNEL {height, width, channels, kernel, stride, padding, oh, ow}

KERNEL max_pool(float *y, const float *x, POOL) {
	Pool p = POOL_OF_KERNEL;
	for (EACH(i, n)) y[i] = x[p.winner(x, i / channels / ow / oh, i / channels / ow % oh, i / channels % ow, i % channels)];
}

// A thread adds up an element of dx, over the windows that it lies in, in their order.
KERNEL max_pool_backward(float *dx, const float *dy, const float *x, POOL) {
	Pool p = POOL_OF_KERNEL;
	for (EACH(i, n)) {
		long c = i % channels, s = i / channels % width, r = i / channels / width % height, b = i / channels / width / height;
		float sum = 0;
		for (long row = (r + padding) < kernel ? 0 : (r + padding - kernel) / stride + 1; row < oh && row * stride - padding <= r; row++) {
			for (long column = (s + padding) < kernel ? 0 : (s + padding - kernel) / stride + 1; column < ow && column * stride - padding <= s; column++) {
				if (p.winner(x, b, row, column, c) == i) sum += dy[((b * oh + row) * ow + column) * channels + c];
			}
		}
		dx[i] = sum;
	}
}

KERNEL average_pool(float *y, const float *x, long positions, long channels, long n) {
	for (EACH(i, n)) {
		float sum = 0;
		for (long at = 0; at < positions; at++) sum += x[(i / channels * positions + at) * channels + i % channels];
		y[i] = sum / positions;
	}
}

KERNEL average_pool_backward(float *dx, const float *dy, float share, long positions, long channels, long n) {
	for (EACH(i, n)) dx[i] = dy[i / (positions * channels) * channels + i % channels] * share;
}

// Group is the channels of one group of one sample: what a block has.
struct Group {
	long first, width, positions, channels;

	// element i of the group's positions times width: where it lies, and its channel.
	__device__ long at(long i) const { return first + i / width * channels + i % width; }
	__device__ long size() const { return positions * width; }
};

DEVICE Group group_of_block(long positions, long channels, long groups) {
	long width = channels / groups, sample = blockIdx.x / groups, group = blockIdx.x % groups;
	return {sample * positions * channels + group * width, width, positions, channels};
}

// group_moments takes means of differences from an element, and variances of differences from the mean.
KERNEL group_moments(float *mean, float *variance, const float *x, long positions, long channels, long groups) {
	Group g = group_of_block(positions, channels, groups);
	float first = x[g.first], sum = 0, squares = 0;
	for (long i = threadIdx.x; i < g.size(); i += blockDim.x) sum += x[g.at(i)] - first;
	sum = block_sum(sum) / g.size();
	for (long i = threadIdx.x; i < g.size(); i += blockDim.x) {
		float distance = x[g.at(i)] - first - sum;
		squares = fmaf(distance, distance, squares);
	}
	squares = block_sum(squares) / g.size();
	if (threadIdx.x == 0) {
		mean[blockIdx.x] = first + sum;
		variance[blockIdx.x] = squares;
	}
}

KERNEL group_norm(float *y, const float *x, const float *skip, const float *mean, const float *variance, const float *weight, const float *bias,
                  float epsilon, int relu, long positions, long channels, long groups, long n) {
	for (EACH(i, n)) {
		long c = i % channels, s = i / (positions * channels) * groups + c / (channels / groups);
		float z = (x[i] - mean[s]) * (1 / sqrtf(variance[s] + epsilon)) * weight[c] + bias[c];
		if (skip) z += skip[i];
		y[i] = relu && z <= 0 ? 0 : z;
	}
}

// group_norm_backward is device.GroupNormBackward of one group of one sample a block: with g = dz * weight, dx = rstd (g - mean(g) -
// xhat mean(g*xhat)), the means over the group. dx holds dz between the passes.
KERNEL group_norm_backward(float *dx, float *dz, float *sums, const float *dy, const float *x, const float *skip, const float *mean,
                           const float *variance, const float *weight, const float *bias, float epsilon, int relu, long samples, long positions,
                           long channels, long groups) {
	Group g = group_of_block(positions, channels, groups);
	long sample = blockIdx.x / groups, from = blockIdx.x % groups * g.width;
	float m = mean[blockIdx.x], rstd = 1 / sqrtf(variance[blockIdx.x] + epsilon), all = 0, along = 0;
	for (long c = from; c < from + g.width; c++) {
		float first = 0, second = 0;
		for (long at = threadIdx.x; at < positions; at += blockDim.x) {
			long i = g.at(at * g.width + c - from);
			float xhat = (x[i] - m) * rstd, z = xhat * weight[c] + bias[c];
			if (skip) z += skip[i];
			float d = relu && !(z > 0) ? 0 : dy[i];
			dx[i] = d;
			if (dz) dz[i] = d;
			first += d;
			second = fmaf(d, xhat, second);
		}
		first = block_sum(first);
		second = block_sum(second);
		if (threadIdx.x == 0) {
			sums[sample * channels + c] = first;
			sums[(samples + sample) * channels + c] = second;
		}
		all = fmaf(weight[c], first, all);
		along = fmaf(weight[c], second, along);
	}
	all /= g.size();
	along /= g.size();
	for (long c = from; c < from + g.width; c++) {
		for (long at = threadIdx.x; at < positions; at += blockDim.x) {
			long i = g.at(at * g.width + c - from);
			dx[i] = rstd * (dx[i] * weight[c] - all - (x[i] - m) * rstd * along);
		}
	}
}

KERNEL transpose(float *y, const float *x, long rows, long columns, long n) {
	for (EACH(i, n)) {
		long r = i % rows, c = i / rows % columns, matrix = i / rows / columns;
		y[i] = x[(matrix * rows + r) * columns + c];
	}
}

KERNEL copy_columns(float *y, const float *x, long columns, long y_stride, long x_stride, int add, long n) {
	for (EACH(i, n)) {
		long to = i / columns * y_stride + i % columns;
		float v = x[i / columns * x_stride + i % columns];
		y[to] = add ? y[to] + v : v;
	}
}
