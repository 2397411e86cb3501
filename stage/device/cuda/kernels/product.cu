// Products where there is no cuBLAS, and of operands of two types: in float, each sum in the order of its terms.
#include "product.cuh"

// A block computes TILE rows and columns of C, DEPTH terms at a time; each of its 256 threads two halves of PART rows, and of columns, HALF apart.
// The rows of a panel lie 4 floats further apart than they are wide, so that columns are stored to all banks.
#define TILE 128
#define DEPTH 8
#define PART 4
#define HALF (TILE / 2)

struct Panel {
	alignas(16) float x[DEPTH][TILE + 4];
};

// Side is an operand as a block reads it: TILE rows, or columns, from `first` on, of `count`. by_depth: the elements of a term lie together.
struct Side {
	In in;
	long first, count, depth;
	bool by_depth;

	// load is the pack of this thread of the terms from `from` on.
	__device__ Pack<4> load(long from) const {
		long term = from + (by_depth ? threadIdx.x / 32 : threadIdx.x % 2 * 4), at = first + (by_depth ? threadIdx.x % 32 * 4 : threadIdx.x / 2);
		if (term >= depth || at >= count) return Pack<4>();
		return by_depth ? ::load<4>(in, term * count + at, (term + 1) * count) : ::load<4>(in, at * depth + term, (at + 1) * depth);
	}

	__device__ void store(Panel &panel, const Pack<4> &pack) const {
		UNROLL for (int e = 0; e < 4; e++) {
			if (by_depth) panel.x[threadIdx.x / 32][threadIdx.x % 32 * 4 + e] = pack.x[e];
			else panel.x[threadIdx.x % 2 * 4 + e][threadIdx.x / 2] = pack.x[e];
		}
	}
};

TILE_KERNEL product(void *c, int c16, const void *a, int a16, const void *b, int b16, const float *bias, long m, long n, long k,
                                      int trans_a, int trans_b, int accumulate) {
	__shared__ Panel as[2], bs[2];
	Side left = {In(a, a16), blockIdx.y * (long)TILE, m, k, trans_a != 0}, right = {In(b, b16), blockIdx.x * (long)TILE, n, k, trans_b == 0};
	int row = threadIdx.x / 16 * PART, column = threadIdx.x % 16 * PART;
	float sums[2 * PART][2 * PART] = {};
	left.store(as[0], left.load(0));
	right.store(bs[0], right.load(0));
	for (long from = 0, step = 0; from < k; from += DEPTH, step++) {
		Pack<4> next_a = left.load(from + DEPTH), next_b = right.load(from + DEPTH); // on their way while this step computes
		__syncthreads();
		const Panel &rows = as[step % 2], &columns = bs[step % 2];
		UNROLL for (int d = 0; d < DEPTH; d++) {
			Pack<4> x[2], y[2];
			UNROLL for (int i = 0; i < 2; i++) {
				UNROLL for (int e = 0; e < PART; e++) x[i].x[e] = rows.x[d][row + i * HALF + e];
				UNROLL for (int e = 0; e < PART; e++) y[i].x[e] = columns.x[d][column + i * HALF + e];
			}
			UNROLL for (int i = 0; i < 2 * PART; i++) {
				UNROLL for (int j = 0; j < 2 * PART; j++) sums[i][j] = fmaf(x[i / PART].x[i % PART], y[j / PART].x[j % PART], sums[i][j]);
			}
		}
		left.store(as[(step + 1) % 2], next_a);
		right.store(bs[(step + 1) % 2], next_b);
	}
	UNROLL for (int i = 0; i < 2 * PART; i++) {
		UNROLL for (int j = 0; j < 2; j++) {
			Pack<PART> sum;
			UNROLL for (int e = 0; e < PART; e++) sum.x[e] = sums[i][j * PART + e];
			finish(Out(c, c16), left.first + row + i / PART * HALF + i % PART, right.first + column + j * HALF, m, n, sum, bias, accumulate);
		}
	}
}
