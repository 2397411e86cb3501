// Rows of tables.
#include "pack.cuh"

// embed is device.Embed of one row a block.
KERNEL embed(float *out, const float *tokens, const float *positions, const int *ids, long t, long width, long table, int add, Fault *fault,
             int operation) {
	long row = blockIdx.x, id = ids[row], at = row % t * width;
	if (!accepted(fault, operation, row, id, 0, table)) return;
	auto sum = [](float v, float w) { return v + w; };
	for (long c = 4 * threadIdx.x; c < width; c += 4 * (long)blockDim.x) {
		Pack<4> v = load<4>(tokens + id * width, c, width);
		if (positions) v = combine<4>(sum, v, load<4>(positions + at, c, width));
		if (add) v = combine<4>(sum, load<4>(out + row * width, c, width), v);
		store(out + row * width, v, c, width);
	}
}

// embed_backward adds rows to the table, each sum in the order of the rows: a block has the ids that are blockIdx.x modulo gridDim.x, and a
// thread a column.
KERNEL embed_backward(float *dtokens, const float *dout, const int *ids, long rows, long width, long table, Fault *fault, int operation) {
	__shared__ int part[256];
	long column = blockIdx.y * (long)blockDim.x + threadIdx.x;
	for (long from = 0; from < rows; from += blockDim.x) {
		long mine = from + threadIdx.x;
		part[threadIdx.x] = mine < rows && accepted(fault, operation, mine, ids[mine], 0, table) ? ids[mine] : -1;
		__syncthreads();
		for (int r = 0; column < width && r < blockDim.x; r++) {
			if (part[r] >= 0 && part[r] % gridDim.x == blockIdx.x) dtokens[part[r] * width + column] += dout[(from + r) * width + column];
		}
		__syncthreads();
	}
}

KERNEL embed_backward_positions(float *dpositions, const float *dout, long samples, long n) {
	for (EACH(i, n)) {
		float sum = dpositions[i];
		for (long b = 0; b < samples; b++) sum += dout[b * n + i];
		dpositions[i] = sum;
	}
}
