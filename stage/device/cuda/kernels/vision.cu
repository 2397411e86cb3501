// Pools and norms of groups. Images have their channels last.
#include "common.cuh"

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

// Norms of groups. Channels lie side by side, so a block has 32 of them, CHANNELS, at PIXELS positions at once; `span` positions of a sample are
// its part. Parts are (B,parts,C,2) and meet in their order.
#define CHANNELS 32
#define PIXELS 8
#define PARTS long positions, long channels, long groups, long parts, long span

// Part is what a thread has of a block's.
struct Part {
	long sample, channel, group, at, until; // at is the first position, the next is PIXELS further
	bool inside;
	long to; // of parts

	__device__ Part(PARTS) {
		long tiles = (channels + CHANNELS - 1) / CHANNELS, part = blockIdx.x / tiles % parts;
		sample = blockIdx.x / tiles / parts;
		channel = blockIdx.x % tiles * CHANNELS + threadIdx.x % CHANNELS;
		inside = channel < channels;
		group = sample * groups + channel / (channels / groups);
		at = part * span + threadIdx.x / CHANNELS;
		until = (part + 1) * span < positions ? (part + 1) * span : positions;
		to = ((sample * parts + part) * channels + channel) * 2;
	}
};

// Moments are a number of elements, their mean, and the sum of the squares of their distances from it.
struct Moments {
	float count, mean, squares;

	// add adds an element (Welford 1962).
	__device__ void add(float x) {
		float distance = x - mean;
		mean += distance / ++count;
		squares += distance * (x - mean);
	}

	// add adds the elements of others (Chan et al. 1979).
	__device__ void add(const Moments &o) {
		float all = count + o.count, distance = o.mean - mean;
		if (o.count == 0) return;
		mean += distance * (o.count / all);
		squares += o.squares + distance * distance * (count * (o.count / all));
		count = all;
	}
};

// moments_of_parts reads x once. Moments are those of differences from the group's first element.
KERNEL moments_of_parts(float *to, const float *x, PARTS) {
	__shared__ float means[PIXELS][CHANNELS], squares[PIXELS][CHANNELS], counts[PIXELS][CHANNELS];
	Part p(positions, channels, groups, parts, span);
	long width = channels / groups, lane = threadIdx.x % CHANNELS, row = threadIdx.x / CHANNELS;
	Moments found = {0, 0, 0};
	const float *sample = x + p.sample * positions * channels;
	if (p.inside) {
		float first = sample[p.channel / width * width];
		for (long at = p.at; at < p.until; at += PIXELS) found.add(sample[at * channels + p.channel] - first);
	}
	counts[row][lane] = found.count;
	means[row][lane] = found.mean;
	squares[row][lane] = found.squares;
	__syncthreads();
	if (row > 0 || !p.inside) return;
	for (int i = 1; i < PIXELS; i++) found.add(Moments{counts[i][lane], means[i][lane], squares[i][lane]});
	to[p.to] = found.mean;
	to[p.to + 1] = found.squares;
}

// The threads of a block that has the parts of a group.
#define FOLD 64

// group_moments joins the moments of a group's parts: a block has a group of a sample.
KERNEL group_moments(float *mean, float *variance, const float *from, const float *x, PARTS) {
	__shared__ float counts[FOLD], means[FOLD], squares[FOLD];
	long width = channels / groups, sample = blockIdx.x / groups, channel = blockIdx.x % groups * width;
	Moments found = {0, 0, 0};
	for (long i = threadIdx.x; i < parts * width; i += FOLD) {
		long part = i / width, at = ((sample * parts + part) * channels + channel + i % width) * 2;
		long count = (part + 1) * span < positions ? span : positions - part * span;
		found.add(Moments{(float)count, from[at], from[at + 1]});
	}
	for (int others = FOLD / 2; others > 0; others /= 2) {
		counts[threadIdx.x] = found.count;
		means[threadIdx.x] = found.mean;
		squares[threadIdx.x] = found.squares;
		__syncthreads();
		int o = threadIdx.x + others;
		if (threadIdx.x < others) found.add(Moments{counts[o], means[o], squares[o]});
		__syncthreads();
	}
	if (threadIdx.x > 0) return;
	mean[blockIdx.x] = x[sample * positions * channels + channel] + found.mean;
	variance[blockIdx.x] = found.squares / found.count;
}

#define NORM const float *x, const float *skip, const float *mean, const float *variance, const float *weight, const float *bias, float epsilon, int relu
#define NORM_OF_KERNEL {x, skip, mean, variance, weight, bias, epsilon, relu}

// Normed is a norm of groups, element by element.
struct Normed {
	const float *x, *skip, *mean, *variance, *weight, *bias;
	float epsilon;
	int relu;

	__device__ float scale(long group) const { return 1 / sqrtf(variance[group] + epsilon); }

	__device__ float xhat(long i, long group) const { return (x[i] - mean[group]) * scale(group); }

	__device__ float z(long i, long channel, float xhat) const {
		float z = xhat * weight[channel] + bias[channel];
		return skip ? z + skip[i] : z;
	}

	// dz is the gradient before the ReLU.
	__device__ float dz(const float *dy, long i, long channel, float xhat) const { return relu && !(z(i, channel, xhat) > 0) ? 0 : dy[i]; }
};

KERNEL group_norm(float *y, NORM, long positions, long channels, long groups, long n) {
	Normed norm = NORM_OF_KERNEL;
	for (EACH(i, n)) {
		long c = i % channels, group = i / (positions * channels) * groups + c / (channels / groups);
		float z = norm.z(i, c, norm.xhat(i, group));
		y[i] = relu && z <= 0 ? 0 : z;
	}
}

// group_norm_backward_parts sets dz, unless there is none, and adds up dz and dz * xhat of a part of a channel.
KERNEL group_norm_backward_parts(float *to, float *dz, const float *dy, NORM, PARTS) {
	__shared__ float firsts[PIXELS][CHANNELS], seconds[PIXELS][CHANNELS];
	Normed norm = NORM_OF_KERNEL;
	Part p(positions, channels, groups, parts, span);
	long lane = threadIdx.x % CHANNELS, row = threadIdx.x / CHANNELS;
	float first = 0, second = 0;
	for (long at = p.at; p.inside && at < p.until; at += PIXELS) {
		long i = (p.sample * positions + at) * channels + p.channel;
		float xhat = norm.xhat(i, p.group), d = norm.dz(dy, i, p.channel, xhat);
		if (dz) dz[i] = d;
		first += d;
		second = fmaf(d, xhat, second);
	}
	firsts[row][lane] = first;
	seconds[row][lane] = second;
	__syncthreads();
	if (row > 0 || !p.inside) return;
	for (int i = 1; i < PIXELS; i++) {
		first += firsts[i][lane];
		second += seconds[i][lane];
	}
	to[p.to] = first;
	to[p.to + 1] = second;
}

// group_norm_backward_sums sets sums (2,B,C), and means (B,Groups,2) of dz * weight and of that times xhat. A block has a group of a sample, and a
// warp of it a channel.
KERNEL group_norm_backward_sums(float *sums, float *means, const float *from, const float *weight, long samples, PARTS) {
	long width = channels / groups, sample = blockIdx.x / groups, channel = blockIdx.x % groups * width;
	float all = 0, along = 0;
	for (long c = channel + threadIdx.x / 32; c < channel + width; c += blockDim.x / 32) {
		float first = 0, second = 0;
		for (long part = threadIdx.x % 32; part < parts; part += 32) {
			long at = ((sample * parts + part) * channels + c) * 2;
			first += from[at];
			second += from[at + 1];
		}
		first = warp_sum(first);
		second = warp_sum(second);
		if (threadIdx.x % 32 > 0) continue;
		sums[sample * channels + c] = first;
		sums[(samples + sample) * channels + c] = second;
		all = fmaf(weight[c], first, all);
		along = fmaf(weight[c], second, along);
	}
	all = block_sum(all);
	along = block_sum(along);
	if (threadIdx.x > 0) return;
	means[blockIdx.x * 2] = all / (positions * width);
	means[blockIdx.x * 2 + 1] = along / (positions * width);
}

// group_norm_backward is device.GroupNormBackward: with g = dz * weight, dx = rstd (g - mean(g) - xhat mean(g*xhat)), the means over the group.
KERNEL group_norm_backward(float *dx, const float *dy, NORM, const float *means, long positions, long channels, long groups, long n) {
	Normed norm = NORM_OF_KERNEL;
	for (EACH(i, n)) {
		long c = i % channels, group = i / (positions * channels) * groups + c / (channels / groups);
		float xhat = norm.xhat(i, group);
		dx[i] = norm.scale(group) * (norm.dz(dy, i, c, xhat) * weight[c] - means[group * 2] - xhat * means[group * 2 + 1]);
	}
}

// transpose moves a tile of 32 by 32 elements a block, through shared memory: rows are read and written side by side.
KERNEL transpose(float *y, const float *x, long rows, long columns) {
	__shared__ float tile[32][33];
	long down = (rows + 31) / 32, across = (columns + 31) / 32, matrix = blockIdx.x / across / down * rows * columns;
	long top = blockIdx.x / across % down * 32, left = blockIdx.x % across * 32, lane = threadIdx.x % 32;
	for (long i = threadIdx.x / 32; i < 32; i += blockDim.x / 32) {
		if (top + i < rows && left + lane < columns) tile[i][lane] = x[matrix + (top + i) * columns + left + lane];
	}
	__syncthreads();
	for (long i = threadIdx.x / 32; i < 32; i += blockDim.x / 32) {
		if (left + i < columns && top + lane < rows) y[matrix + (left + i) * rows + top + lane] = tile[lane][i];
	}
}

KERNEL copy_columns(float *y, const float *x, long columns, long y_stride, long x_stride, int add, long n) {
	for (EACH(i, n)) {
		long to = i / columns * y_stride + i % columns;
		float v = x[i / columns * x_stride + i % columns];
		y[to] = add ? y[to] + v : v;
	}
}
