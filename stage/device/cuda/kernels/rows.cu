// Operations on the rows of a matrix: a block for each row, or a block for 32 columns.
#include "common.cuh"

// norm is device.Norm of one row a block. Means are taken of differences from an element, and variances of differences from the mean.
KERNEL norm(void *y, int y16, float *mean, float *rstd, const float *x, const float *weight, const float *bias, float epsilon, long columns) {
	long row = blockIdx.x;
	Out out(y, y16);
	x += row * columns;
	float first = mean ? x[0] : 0, sum = 0, squares = 0;
	if (mean) {
		for (long c = threadIdx.x; c < columns; c += blockDim.x) sum += x[c] - first;
		sum = block_sum(sum) / columns;
	}
	for (long c = threadIdx.x; c < columns; c += blockDim.x) {
		float distance = x[c] - first - sum;
		squares = fmaf(distance, distance, squares);
	}
	float centre = first + sum, scale = 1 / sqrtf(block_sum(squares) / columns + epsilon);
	for (long c = threadIdx.x; c < columns; c += blockDim.x) {
		float scaled = (x[c] - centre) * scale * weight[c];
		out.set(row * columns + c, bias ? scaled + bias[c] : scaled);
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
	long row = blockIdx.x, from = row * columns;
	In dout(dy, dy16);
	float m = mean ? mean[row] : 0, s = rstd[row], along = 0, all = 0;
	for (long c = threadIdx.x; c < columns; c += blockDim.x) {
		float g = dout[from + c] * weight[c];
		all += g;
		along = fmaf(g, (x[from + c] - m) * s, along);
	}
	along = block_sum(along) / columns;
	all = mean ? block_sum(all) / columns : 0;
	for (long c = threadIdx.x; c < columns; c += blockDim.x) {
		float g = dout[from + c] * weight[c];
		float d = (g - all - (x[from + c] - m) * s * along) * s;
		dx[from + c] = plus ? d + plus[from + c] : d;
	}
}

// The threads of a block that adds up columns: so many columns, and so many rows at once.
#define COLUMNS 32
#define ROWS 32
#define COLUMN_KERNEL KERNEL __launch_bounds__(COLUMNS * ROWS)

// add_columns adds to y what the threads of a column have, rounded once.
DEVICE void add_columns(float *y, double sum, long column, long columns) {
	__shared__ double sums[ROWS][COLUMNS];
	sums[threadIdx.x / COLUMNS][threadIdx.x % COLUMNS] = sum;
	__syncthreads();
	if (threadIdx.x < COLUMNS && column < columns) {
		for (int r = 1; r < ROWS; r++) sum += sums[r][threadIdx.x];
		y[column] += (float)sum;
	}
	__syncthreads();
}

COLUMN_KERNEL sum_rows(float *sum, const void *x, int x16, long rows, long columns) {
	long column = blockIdx.x * (long)COLUMNS + threadIdx.x % COLUMNS;
	In in(x, x16);
	double total = 0;
	if (column < columns) {
		for (long r = threadIdx.x / COLUMNS; r < rows; r += ROWS) total += in[r * columns + column];
	}
	add_columns(sum, total, column, columns);
}

COLUMN_KERNEL norm_backward_weight(float *dweight, float *dbias, const void *dy, int dy16, const float *x, const float *mean,
                                   const float *rstd, long rows, long columns) {
	long column = blockIdx.x * (long)COLUMNS + threadIdx.x % COLUMNS;
	In dout(dy, dy16);
	double along = 0, all = 0;
	if (column < columns) {
		for (long r = threadIdx.x / COLUMNS; r < rows; r += ROWS) {
			double g = dout[r * columns + column];
			along += g * ((x[r * columns + column] - (mean ? mean[r] : 0)) * rstd[r]);
			all += g;
		}
	}
	add_columns(dweight, along, column, columns);
	if (dbias) add_columns(dbias, all, column, columns);
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
	float largest = in[0], poison = 0, all = 0, sum = 0, aimed = in[target];
	for (long c = threadIdx.x; c < vocabulary; c += blockDim.x) {
		largest = Max()(in[c], largest);
		poison += in[c] * 0;  // NaN where one is not finite: exp(-Inf) alone would hide it
		all += in[c];
	}
	largest = block_max(largest);
	poison = block_sum(poison);
	for (long c = threadIdx.x; c < vocabulary; c += blockDim.x) sum += expf(in[c] - largest);
	sum = block_sum(sum);
	float loss = largest - aimed + logf(sum) + poison;
	if (smoothing > 0) loss += smoothing * (aimed - block_sum(all) / vocabulary);
	if (threadIdx.x == 0) losses[row] = loss;
	for (long c = threadIdx.x; dlogits && c < vocabulary; c += blockDim.x) {
		float probability = expf(in[c] - largest) / sum;
		float wanted = smoothing / vocabulary + (c == target ? 1 - smoothing : 0);
		dlogits[row * vocabulary + c] = (probability - wanted) * scale;
	}
}
