// Operations on the rows of a matrix: a block for each row, whose threads take packs of 4 elements, or blocks that add columns up.
#include "pack.cuh"

// EACH_OF_ROW has the first elements of the packs that a thread of a block takes of a row.
#define EACH_OF_ROW(c, columns) long c = 4 * threadIdx.x; c < (columns); c += 4 * (long)blockDim.x

// norm is device.Norm of one row a block. Means are taken of differences from an element, and variances of differences from the mean.
KERNEL norm(void *y, int y16, float *mean, float *rstd, const float *x, const float *weight, const float *bias, float epsilon, long columns) {
	long row = blockIdx.x;
	Out out(y, y16);
	long from = row * columns;
	x += from;
	float first = mean ? x[0] : 0, sum = 0, squares = 0;
	if (mean) {
		for (EACH_OF_ROW(c, columns)) {
			Pack<4> in = load<4>(x, c, columns);
			UNROLL for (int e = 0; e < 4; e++) sum += c + e < columns ? in.x[e] - first : 0;
		}
		sum = block_sum(sum) / columns;
	}
	for (EACH_OF_ROW(c, columns)) {
		Pack<4> in = load<4>(x, c, columns);
		UNROLL for (int e = 0; e < 4; e++) {
			float distance = c + e < columns ? in.x[e] - first - sum : 0;
			squares = fmaf(distance, distance, squares);
		}
	}
	float centre = first + sum, scale = 1 / sqrtf(block_sum(squares) / columns + epsilon);
	for (EACH_OF_ROW(c, columns)) {
		Pack<4> scaled = combine<4>([=](float x, float weight) { return (x - centre) * scale * weight; }, load<4>(x, c, columns), load<4>(weight, c, columns));
		if (bias) scaled = combine<4>([](float x, float bias) { return x + bias; }, scaled, load<4>(bias, c, columns));
		store(out, scaled, from + c, from + columns);
	}
	if (threadIdx.x == 0) {
		rstd[row] = scale;
		if (mean) mean[row] = centre;
	}
}

// norm_backward is device.NormBackward: with g = dy*weight, dx = rstd (g - mean(g) - xhat mean(g*xhat)) [+ plus], without mean(g) where
// the norm has no mean.
KERNEL norm_backward(float *dx, const void *dy, int dy16, const float *x, const float *mean, const float *rstd, const float *weight,
                     const float *plus, long columns) {
	long row = blockIdx.x, from = row * columns, end = from + columns;
	In dout(dy, dy16);
	float m = mean ? mean[row] : 0, s = rstd[row], along = 0, all = 0;
	for (EACH_OF_ROW(c, columns)) {
		Pack<4> g = load<4>(dout, from + c, end), weights = load<4>(weight, c, columns), in = load<4>(x, from + c, end);
		UNROLL for (int e = 0; e < 4; e++) { // g and weights are 0 beyond the row
			all += g.x[e] * weights.x[e];
			along = fmaf(g.x[e] * weights.x[e], (in.x[e] - m) * s, along);
		}
	}
	along = block_sum(along) / columns;
	all = mean ? block_sum(all) / columns : 0;
	for (EACH_OF_ROW(c, columns)) {
		Pack<4> g = load<4>(dout, from + c, end), weights = load<4>(weight, c, columns), in = load<4>(x, from + c, end);
		Pack<4> d = combine<4>([=](float g, float weight, float x) { return (g * weight - all - (x - m) * s * along) * s; }, g, weights, in);
		if (plus) d = combine<4>([](float d, float plus) { return d + plus; }, d, load<4>(plus, from + c, end));
		store(dx, d, from + c, end);
	}
}

// Blocks that add columns up have STRIPE of them, four to a lane, and WARPS_OF_STRIPE rows at once. blockIdx.y is the part of the rows, of
// part_rows, that a block has.
#define STRIPE 128
#define WARPS_OF_STRIPE 8
#define STRIPE_KERNEL KERNEL __launch_bounds__(32 * WARPS_OF_STRIPE)

// The rows that a warp of a block adds up, and the first column of a lane.
#define EACH_OF_PART(r, rows, part_rows)                                                                                                        	long r = blockIdx.y * (part_rows) + threadIdx.x / 32; r < (rows) && r < (blockIdx.y + 1) * (part_rows); r += WARPS_OF_STRIPE
DEVICE long column_of_lane() { return blockIdx.x * (long)STRIPE + threadIdx.x % 32 * 4; }

// add_part adds up what the warps of a block have, and adds it, rounded once, to y; or, where there are parts, sets row blockIdx.y of them to it.
DEVICE void add_part(float *y, double *parts, const double (&sum)[4], long columns) {
	__shared__ double sums[WARPS_OF_STRIPE][STRIPE];
	UNROLL for (int e = 0; e < 4; e++) sums[threadIdx.x / 32][threadIdx.x % 32 * 4 + e] = sum[e];
	__syncthreads();
	long column = blockIdx.x * (long)STRIPE + threadIdx.x;
	if (threadIdx.x < STRIPE && column < columns) {
		double total = sums[0][threadIdx.x];
		for (int w = 1; w < WARPS_OF_STRIPE; w++) total += sums[w][threadIdx.x];
		if (parts) parts[blockIdx.y * columns + column] = total;
		else y[column] += (float)total;
	}
	__syncthreads();
}

STRIPE_KERNEL sum_rows(float *sum, double *parts, const void *x, int x16, long rows, long columns, long part_rows) {
	long column = column_of_lane();
	double total[4] = {};
	for (EACH_OF_PART(r, rows, part_rows)) {
		Pack<4> in = load<4>(In(x, x16), r * columns + column, column < columns ? (r + 1) * columns : 0);
		UNROLL for (int e = 0; e < 4; e++) total[e] += in.x[e];
	}
	add_part(sum, parts, total, columns);
}

STRIPE_KERNEL norm_backward_weight(float *dweight, double *weight_parts, float *dbias, double *bias_parts, const void *dy, int dy16, const float *x,
                                   const float *mean, const float *rstd, long rows, long columns, long part_rows) {
	long column = column_of_lane();
	double along[4] = {}, all[4] = {};
	for (EACH_OF_PART(r, rows, part_rows)) {
		long at = r * columns + column, end = column < columns ? (r + 1) * columns : 0;
		Pack<4> g = load<4>(In(dy, dy16), at, end), in = load<4>(x, at, end);
		float m = mean ? mean[r] : 0, s = rstd[r];
		UNROLL for (int e = 0; e < 4; e++) {
			along[e] += (double)g.x[e] * ((in.x[e] - m) * s);
			all[e] += g.x[e];
		}
	}
	add_part(dweight, weight_parts, along, columns);
	if (dbias) add_part(dbias, bias_parts, all, columns);
}

// add_parts adds the parts of columns to y, in their order, rounded once.
KERNEL add_parts(float *y, const double *parts, long count, long columns) {
	for (EACH(c, columns)) {
		double total = parts[c];
		for (long p = 1; p < count; p++) total += parts[p * columns + c];
		y[c] += (float)total;
	}
}

// add_bias sets rows of c to those of sums, or to nothing where there are none, and a bias; rounded once.
KERNEL add_bias(void *c, int c16, const float *sums, const float *bias, long columns) {
	long from = blockIdx.x * columns;
	for (EACH_OF_ROW(i, columns)) {
		Pack<4> v = load<4>(bias, i, columns);
		if (sums) v = combine<4>([](float sum, float bias) { return sum + bias; }, load<4>(sums, from + i, from + columns), v);
		store(Out(c, c16), v, from + i, from + columns);
	}
}

// cross_entropy is device.CrossEntropy of one row a block. dlogits may be logits.
KERNEL cross_entropy(float *losses, float *dlogits, const float *logits, const int *targets, float scale, const long *now, float smoothing,
                     long vocabulary, Fault *fault, int operation) {
	latest(now, scale);
	long row = blockIdx.x;
	int target = targets[row];
	const float *in = logits + row * vocabulary;
	if (target == -1 || !accepted(fault, operation, row, target, -1, vocabulary)) {
		if (threadIdx.x == 0) losses[row] = 0;
		for (long c = threadIdx.x; dlogits && c < vocabulary; c += blockDim.x) dlogits[row * vocabulary + c] = 0;
		return;
	}
	float largest = in[0], poison = 0, all = 0, sum = 0, aimed = in[target]; // sum is that of exp(logit - largest)
	for (EACH_OF_ROW(c, vocabulary)) {
		Pack<4> of = load<4>(in, c, vocabulary);
		float before = largest;
		UNROLL for (int e = 0; e < 4; e++) {
			if (c + e < vocabulary) largest = Max()(of.x[e], largest);
			poison += of.x[e] * 0; // NaN where one is not finite: exp(-Inf) alone would hide it
			all += of.x[e];
		}
		if (largest != before) sum *= expf(before - largest);
		UNROLL for (int e = 0; e < 4; e++) sum += c + e < vocabulary ? expf(of.x[e] - largest) : 0;
	}
	float mine = largest;
	largest = block_max(largest);
	sum = block_sum(sum * expf(mine - largest));
	poison = block_sum(poison);
	float loss = largest - aimed + logf(sum) + poison;
	if (smoothing > 0) loss += smoothing * (aimed - block_sum(all) / vocabulary);
	if (threadIdx.x == 0) losses[row] = loss;
	if (!dlogits) return;
	for (EACH_OF_ROW(c, vocabulary)) {
		Pack<4> of = load<4>(in, c, vocabulary);
		UNROLL for (int e = 0; e < 4; e++) {
			float wanted = smoothing / vocabulary + (c + e == target ? 1 - smoothing : 0);
			of.x[e] = (expf(of.x[e] - largest) / sum - wanted) * scale;
		}
		store(dlogits + row * vocabulary, of, c, vocabulary);
	}
}
