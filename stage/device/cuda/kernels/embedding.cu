// Rows of tables.
#include "common.cuh"

KERNEL embed(float *out, const float *tokens, const float *positions, const int *ids, long rows, long t, long width, long table, int add,
             Fault *fault, int operation) {
	for (EACH(i, rows * width)) {
		long row = i / width, c = i % width;
		if (!accepted(fault, operation, row, ids[row], 0, table)) continue;
		float v = tokens[ids[row] * width + c];
		if (positions) v += positions[row % t * width + c];
		out[i] = add ? out[i] + v : v;
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
		for (long b = 0; b < samples; b++) dpositions[i] += dout[b * n + i];
	}
}
