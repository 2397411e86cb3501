// Products of bf16 by matrix units, where there is no cuBLAS.
#include "mma.cuh"
#include "product.cuh"

// A block computes MMA_TILE rows and columns of C, MMA_DEPTH terms at a time, each of its eight warps MMA_ROWS rows and MMA_COLUMNS columns. One
// pair of panels is computed with while the next is on its way.
#define MMA_TILE 128
#define MMA_DEPTH 32
#define MMA_ROWS 64
#define MMA_COLUMNS 32

// Rows of panels lie 8 elements further apart than they are wide: so eight of them, one below the other, lie in all banks.
struct Panel16 {
	alignas(16) bf16 x[MMA_TILE * (MMA_DEPTH + 8)];
};

// Side16 is an operand as a block reads it: MMA_TILE rows, or columns, from `first` on, of `count`. by_depth: the elements of a term lie
// together, in the operand and in its panels.
struct Side16 {
	const bf16 *x;
	long first, count, depth;
	bool by_depth;

	__device__ int pitch() const { return by_depth ? MMA_TILE + 8 : MMA_DEPTH + 8; }

	// begin begins to load the panel of the terms from `from` on; what the operand lacks is 0.
	__device__ void begin(Panel16 &panel, long from) const {
		int wide = by_depth ? MMA_TILE : MMA_DEPTH;
		long stride = by_depth ? count : depth, top = by_depth ? from : first, left = by_depth ? first : from, rows = by_depth ? depth : count;
		bool aligned = ((unsigned long)x | (unsigned long)stride * sizeof(bf16)) % 16 == 0;
		ROLL for (int i = threadIdx.x; i < MMA_TILE * MMA_DEPTH / 8; i += blockDim.x) {
			int row = i * 8 / wide, column = i * 8 % wide;
			bool present = top + row < rows && left + column < stride;
			const bf16 *at = x + (top + row) * stride + left + column;
			bf16 *to = &panel.x[row * pitch() + column];
			if (aligned) { // then eight elements lie in the operand, or none
				copy_16(to, present ? at : x, present);
				continue;
			}
			ROLL for (int c = 0; c < 8; c++) to[c] = present && left + column + c < stride ? at[c] : 0;
		}
	}

	// load is elements of 16 rows, or columns, from `at` on, and of 16 terms from d on. across: columns, as right operands of two products.
	__device__ void load(unsigned (&part)[4], const Panel16 &panel, int at, int d, bool across) const {
		int lane = threadIdx.x % 32, low = lane % 16, high = lane / 16 * 8; // the second matrix lies below the first, the third to the right
		if (across != by_depth) low = lane / 16 * 8 + lane % 8, high = lane / 8 % 2 * 8; // the second to the right, the third below
		if (by_depth) load_transposed(part, &panel.x[(d + low) * pitch() + at + high]);
		else load_matrices(part, &panel.x[(at + low) * pitch() + d + high]);
	}
};

TILE_KERNEL product_mma(void *c, int c16, const bf16 *a, const bf16 *b, const float *bias, long m, long n, long k, int trans_a,
                                          int trans_b, int accumulate) {
	__shared__ Panel16 as[2], bs[2];
	Side16 left = {a, blockIdx.y * (long)MMA_TILE, m, k, trans_a != 0}, right = {b, blockIdx.x * (long)MMA_TILE, n, k, trans_b == 0};
	int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
	int row = warp % 2 * MMA_ROWS, column = warp / 2 * MMA_COLUMNS;
	float sums[MMA_ROWS / 16][MMA_COLUMNS / 8][4] = {};
	long steps = (k + MMA_DEPTH - 1) / MMA_DEPTH;
	for (long i = 0; i <= steps; i++) { // step i begins the loads of panels i, and computes with panels i - 1
		if (i < steps) {
			left.begin(as[i % 2], i * MMA_DEPTH);
			right.begin(bs[i % 2], i * MMA_DEPTH);
		}
		copies_begun();
		if (i == 0) continue;
		copies_ended<1>();
		__syncthreads();
		UNROLL for (int d = 0; d < MMA_DEPTH; d += 16) {
			unsigned x[MMA_ROWS / 16][4], y[MMA_COLUMNS / 16][4];
			UNROLL for (int r = 0; r < MMA_ROWS / 16; r++) left.load(x[r], as[(i - 1) % 2], row + 16 * r, d, false);
			UNROLL for (int s = 0; s < MMA_COLUMNS / 16; s++) right.load(y[s], bs[(i - 1) % 2], column + 16 * s, d, true);
			UNROLL for (int r = 0; r < MMA_ROWS / 16; r++) {
				UNROLL for (int s = 0; s < MMA_COLUMNS / 8; s++) mma(sums[r][s], x[r], y[s / 2][s % 2 * 2], y[s / 2][s % 2 * 2 + 1]);
			}
		}
		__syncthreads();
	}
	UNROLL for (int r = 0; r < MMA_ROWS / 16; r++) {
		UNROLL for (int s = 0; s < MMA_COLUMNS / 8; s++) {
			UNROLL for (int i = 0; i < 2; i++) {
				Pack<2> sum = {{sums[r][s][2 * i], sums[r][s][2 * i + 1]}};
				finish(Out(c, c16), left.first + row + 16 * r + lane / 4 + 8 * i, right.first + column + 8 * s + lane % 4 * 2, m, n, sum, bias, accumulate);
			}
		}
	}
}
