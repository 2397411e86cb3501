// Products where there is no cuBLAS.
#include "common.cuh"

// A block computes TILE rows and columns of C, DEPTH terms at a time; each of its 256 threads PART rows and columns.
#define TILE 64
#define DEPTH 16
#define PART 4

KERNEL product(void *c, int c16, const void *a, int a16, const void *b, int b16, const float *bias, long m, long n, long k, int trans_a,
               int trans_b, int accumulate) {
	__shared__ float as[DEPTH][TILE], bs[DEPTH][TILE];
	long top = blockIdx.y * (long)TILE, left = blockIdx.x * (long)TILE;
	int row = threadIdx.x / (TILE / PART) * PART, column = threadIdx.x % (TILE / PART) * PART;
	In left_operand(a, a16), right_operand(b, b16);
	bool outside = top + row >= m || left + column >= n; // what this thread has
	float sums[PART][PART] = {};
	for (long from = 0; from < k; from += DEPTH) {
		for (int i = threadIdx.x; i < DEPTH * TILE; i += blockDim.x) {
			long at = from + i / TILE, r = top + i % TILE, s = left + i % TILE;
			as[i / TILE][i % TILE] = at < k && r < m ? left_operand[trans_a ? at * m + r : r * k + at] : 0;
			bs[i / TILE][i % TILE] = at < k && s < n ? right_operand[trans_b ? s * k + at : at * n + s] : 0;
		}
		__syncthreads();
		for (int d = 0; d < DEPTH && !outside; d++) {
			for (int i = 0; i < PART; i++) {
				for (int j = 0; j < PART; j++) sums[i][j] = fmaf(as[d][row + i], bs[d][column + j], sums[i][j]);
			}
		}
		__syncthreads();
	}
	Out out(c, c16);
	for (int i = 0; i < PART; i++) {
		for (int j = 0; j < PART; j++) {
			long r = top + row + i, s = left + column + j;
			if (r >= m || s >= n) continue;
			float v = sums[i][j] + (bias ? bias[s] : 0);
			out.set(r * n + s, accumulate ? ((const float *)c)[r * n + s] + v : v);
		}
	}
}
