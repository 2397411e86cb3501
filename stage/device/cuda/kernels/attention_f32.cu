// Attention of float, heads of up to 128 elements, by sums in registers (Dao et al. 2022). A block of 16 by 16 threads holds 64 rows of some
// operands in shared memory and meets tiles of two others there. Of a tile of scores a thread has four rows, one below the other, and columns
// that lie 16 apart; of the sums it has the same rows, and columns by fours. Heads are padded with zeros to WIDTH.
//
//	attend_floats    holds q,        meets k and v
//	queries_floats   holds q, dout,  meets k and v     for dq
//	keys_floats      holds k, v,     meets q and dout  for dk and dv
#include "attention.cuh"
#include "pack.cuh"

#define SIDE 16
#define BLOCK_ROWS 64
#define THREAD_ROWS (BLOCK_ROWS / SIDE)
#define SIDES_KERNEL KERNEL __launch_bounds__(SIDE *SIDE, 2)

// Floats is a block's shared memory. Rows lie 4 elements further apart than they are wide: so eight of them, one below the other, lie in all banks.
template <int WIDTH, int COLUMNS, int OPERANDS> struct Floats {
	typedef float Row[WIDTH + 4];
	alignas(16) Row held[OPERANDS][BLOCK_ROWS], met[2][COLUMNS];
	alignas(16) float weights[BLOCK_ROWS][COLUMNS + 4];
};

// The first row of a thread, and its place in each run of 16 columns.
DEVICE int side_row() { return threadIdx.x / SIDE * THREAD_ROWS; }
DEVICE int side_column() { return threadIdx.x % SIDE; }

// over_side reduces what the 16 threads have that share rows.
template <class Reduce> DEVICE float over_side(float v, Reduce reduce) {
	for (int distance = SIDE / 2; distance > 0; distance /= 2) v = reduce(v, __shfl_xor_sync(~0u, v, distance));
	return v;
}

DEVICE void take_four(float (&to)[4], const float *from) { *(uint4 *)to = *(const uint4 *)from; }

// fill_floats loads `count` rows of s elements, stride apart; those from `have` on are 0.
template <int WIDTH> DEVICE void fill_floats(float (*tile)[WIDTH + 4], int count, const float *from, long stride, long have, long s) {
	for (int i = threadIdx.x; i < count * (WIDTH / 4); i += SIDE * SIDE) {
		int row = i / (WIDTH / 4), column = i % (WIDTH / 4) * 4;
		store(tile[row], row < have ? load<4>(from + row * stride, column, s) : Pack<4>(), column, WIDTH);
	}
}

// scores_of sets sums to the products of held rows and rows of a tile.
template <int WIDTH, int N> DEVICE void scores_of(float (&sums)[THREAD_ROWS][N], const float (*held)[WIDTH + 4], const float (*tile)[WIDTH + 4]) {
	UNROLL for (int i = 0; i < THREAD_ROWS; i++) {
		UNROLL for (int j = 0; j < N; j++) sums[i][j] = 0;
	}
	UNROLL_BY_2 for (int c = 0; c < WIDTH; c += 4) {
		alignas(16) float x[THREAD_ROWS][4], y[N][4];
		UNROLL for (int i = 0; i < THREAD_ROWS; i++) take_four(x[i], &held[side_row() + i][c]);
		UNROLL for (int j = 0; j < N; j++) take_four(y[j], &tile[side_column() + SIDE * j][c]);
		UNROLL for (int i = 0; i < THREAD_ROWS; i++) {
			UNROLL for (int j = 0; j < N; j++) {
				UNROLL for (int e = 0; e < 4; e++) sums[i][j] = fmaf(x[i][e], y[j][e], sums[i][j]);
			}
		}
	}
}

// which_floats is the set of the thread's scores for whose row and column `of` holds: of row i, column j is bit N i + j.
template <int N, class Of> DEVICE unsigned which_floats(Of of) {
	unsigned set = 0;
	ROLL for (int n = 0; n < THREAD_ROWS * N; n++) set |= (of(side_row() + n / N, side_column() + SIDE * (n % N)) ? 1u : 0u) << n;
	return set;
}

// SideSums are a thread's part of 64 rows of WIDTH columns.
template <int WIDTH> struct SideSums {
	float x[THREAD_ROWS][WIDTH / SIDE];

	static __device__ int column(int of) { return side_column() * 4 + of * 4 * SIDE; }

	__device__ void clear() {
		UNROLL for (int i = 0; i < THREAD_ROWS; i++) {
			UNROLL for (int c = 0; c < WIDTH / SIDE; c++) x[i][c] = 0;
		}
	}

	// add adds rows of a tile, weighted.
	template <int COLUMNS> __device__ void add(const float (*weights)[COLUMNS + 4], const float (*tile)[WIDTH + 4]) {
		UNROLL_BY_2 for (int k = 0; k < COLUMNS; k += 4) {
			alignas(16) float w[THREAD_ROWS][4], y[4];
			UNROLL for (int i = 0; i < THREAD_ROWS; i++) take_four(w[i], &weights[side_row() + i][k]);
			UNROLL for (int e = 0; e < 4; e++) {
				UNROLL for (int of = 0; of < WIDTH / SIDE / 4; of++) {
					take_four(y, &tile[k + e][column(of)]);
					UNROLL for (int i = 0; i < THREAD_ROWS; i++) {
						UNROLL for (int c = 0; c < 4; c++) x[i][of * 4 + c] = fmaf(w[i][e], y[c], x[i][of * 4 + c]);
					}
				}
			}
		}
	}

	// store_rows writes the first s columns of the rows that there are, row i times factor[i].
	__device__ void store_rows(float *to, long stride, long have, long s, const float (&factor)[THREAD_ROWS]) const {
		UNROLL for (int i = 0; i < THREAD_ROWS; i++) {
			if (side_row() + i >= have) continue;
			UNROLL for (int of = 0; of < WIDTH / SIDE / 4; of++) {
				Pack<4> sums;
				UNROLL for (int c = 0; c < 4; c++) sums.x[c] = x[i][of * 4 + c] * factor[i];
				store(to + (side_row() + i) * stride, sums, column(of), s);
			}
		}
	}
};

template <int WIDTH, int COLUMNS> DEVICE void attend_floats(const Attended &a, float *out, float *lse, const float *q, const float *k, const float *v) {
	Floats<WIDTH, COLUMNS, 1> &tile = *(Floats<WIDTH, COLUMNS, 1> *)dynamic_shared();
	long blocks = (a.queries + BLOCK_ROWS - 1) / BLOCK_ROWS, head = blockIdx.x / blocks, b = head / a.heads, h = head % a.heads;
	long top = (blocks - 1 - blockIdx.x % blocks) * BLOCK_ROWS, group = h / (a.heads / a.key_heads); // the block that sees most comes first
	const int N = COLUMNS / SIDE;
	float scale = a.scale(), keep = a.threshold == 0 ? 1 : a.keep, largest[THREAD_ROWS], sum[THREAD_ROWS], factor[THREAD_ROWS];
	SideSums<WIDTH> o;
	o.clear();
	UNROLL for (int i = 0; i < THREAD_ROWS; i++) largest[i] = -INFINITY, sum[i] = 0;
	fill_floats<WIDTH>(tile.held[0], BLOCK_ROWS, q + a.queries_at(b, h, top), a.query_row, a.queries - top, a.s);
	for (long left = a.from(top); left < a.until(top + BLOCK_ROWS); left += COLUMNS) {
		__syncthreads();
		fill_floats<WIDTH>(tile.met[0], COLUMNS, k + a.keys_at(b, group, left), a.key_row, a.keys - left, a.s);
		fill_floats<WIDTH>(tile.met[1], COLUMNS, v + a.keys_at(b, group, left), a.key_row, a.keys - left, a.s);
		__syncthreads();
		float p[THREAD_ROWS][N];
		scores_of<WIDTH>(p, tile.held[0], tile.met[0]);
		unsigned seen = ~0u, kept = ~0u;
		if (!a.all_see(top, BLOCK_ROWS, left, COLUMNS)) seen = which_floats<N>([&](int row, int column) { return a.sees(b, top + row, left + column); });
		if (a.threshold != 0) kept = which_floats<N>([&](int row, int column) { return a.keeps(b, h, top + row, left + column); });
		UNROLL for (int i = 0; i < THREAD_ROWS; i++) {
			float now = largest[i];
			UNROLL for (int j = 0; j < N; j++) {
				p[i][j] = seen >> (N * i + j) & 1 ? p[i][j] * scale : -INFINITY;
				now = Max()(p[i][j], now);
			}
			now = over_side(now, Max());
			float taken = now == -INFINITY ? 0 : now, shrink = expf(largest[i] - taken);
			largest[i] = now;
			sum[i] *= shrink;
			UNROLL for (int j = 0; j < N; j++) {
				float probability = expf(p[i][j] - taken);
				sum[i] += probability;
				tile.weights[side_row() + i][side_column() + SIDE * j] = kept >> (N * i + j) & 1 ? probability * keep : 0;
			}
			UNROLL for (int c = 0; c < WIDTH / SIDE; c++) o.x[i][c] *= shrink;
		}
		__syncthreads();
		o.template add<COLUMNS>(tile.weights, tile.met[1]);
	}
	UNROLL for (int i = 0; i < THREAD_ROWS; i++) {
		long row = top + side_row() + i;
		sum[i] = over_side(sum[i], Sum());
		factor[i] = sum[i] == 0 ? 0 : 1 / sum[i];
		if (lse && side_column() == 0 && row < a.queries) lse[head * a.queries + row] = sum[i] == 0 ? INFINITY : largest[i] + logf(sum[i]);
	}
	o.store_rows(out + a.out_at(b, h, top), a.heads * a.s, a.queries - top, a.s, factor);
}

// queries_floats sets dq, and means to the products of dout and out by row, which keys_floats needs.
template <int WIDTH, int COLUMNS> DEVICE void queries_floats(const Attended &a, float *dq, float *means, const float *dout, const float *q,
                                                             const float *k, const float *v, const float *out, const float *lse) {
	Floats<WIDTH, COLUMNS, 2> &tile = *(Floats<WIDTH, COLUMNS, 2> *)dynamic_shared();
	long blocks = (a.queries + BLOCK_ROWS - 1) / BLOCK_ROWS, head = blockIdx.x / blocks, b = head / a.heads, h = head % a.heads;
	long top = (blocks - 1 - blockIdx.x % blocks) * BLOCK_ROWS, group = h / (a.heads / a.key_heads), have = a.queries - top;
	long at = a.out_at(b, h, top), stride = a.heads * a.s;
	const int N = COLUMNS / SIDE;
	float scale = a.scale(), keep = a.threshold == 0 ? 1 : a.keep, mean[THREAD_ROWS], saved[THREAD_ROWS], factor[THREAD_ROWS];
	SideSums<WIDTH> sums;
	sums.clear();
	UNROLL for (int i = 0; i < THREAD_ROWS; i++) {
		long row = side_row() + i;
		mean[i] = 0;
		for (long c = side_column(); row < have && c < a.s; c += SIDE) mean[i] = fmaf(dout[at + row * stride + c], out[at + row * stride + c], mean[i]);
		mean[i] = over_side(mean[i], Sum());
		saved[i] = row < have ? lse[head * a.queries + top + row] : 0;
		if (row < have && side_column() == 0) means[head * a.queries + top + row] = mean[i];
		factor[i] = scale;
	}
	fill_floats<WIDTH>(tile.held[0], BLOCK_ROWS, q + a.queries_at(b, h, top), a.query_row, have, a.s);
	fill_floats<WIDTH>(tile.held[1], BLOCK_ROWS, dout + at, stride, have, a.s);
	for (long left = a.from(top); left < a.until(top + BLOCK_ROWS); left += COLUMNS) {
		__syncthreads();
		fill_floats<WIDTH>(tile.met[0], COLUMNS, k + a.keys_at(b, group, left), a.key_row, a.keys - left, a.s);
		fill_floats<WIDTH>(tile.met[1], COLUMNS, v + a.keys_at(b, group, left), a.key_row, a.keys - left, a.s);
		__syncthreads();
		float p[THREAD_ROWS][N], ds[THREAD_ROWS][N];
		scores_of<WIDTH>(p, tile.held[0], tile.met[0]);
		scores_of<WIDTH>(ds, tile.held[1], tile.met[1]);
		unsigned seen = ~0u, kept = ~0u;
		if (!a.all_see(top, BLOCK_ROWS, left, COLUMNS)) seen = which_floats<N>([&](int row, int column) { return a.sees(b, top + row, left + column); });
		if (a.threshold != 0) kept = which_floats<N>([&](int row, int column) { return a.keeps(b, h, top + row, left + column); });
		UNROLL for (int i = 0; i < THREAD_ROWS; i++) {
			UNROLL for (int j = 0; j < N; j++) {
				float probability = seen >> (N * i + j) & 1 ? expf(p[i][j] * scale - saved[i]) : 0;
				float gradient = kept >> (N * i + j) & 1 ? ds[i][j] * keep : 0;
				tile.weights[side_row() + i][side_column() + SIDE * j] = probability * (gradient - mean[i]);
			}
		}
		__syncthreads();
		sums.template add<COLUMNS>(tile.weights, tile.met[0]);
	}
	sums.store_rows(dq + a.queries_at(b, h, top), a.query_row, have, a.s, factor);
}

// keys_floats sets dk and dv: the sums have the queries of all heads that share the keys, in their order.
template <int WIDTH, int COLUMNS> DEVICE void keys_floats(const Attended &a, float *dk, float *dv, const float *means, const float *dout,
                                                          const float *q, const float *k, const float *v, const float *lse) {
	Floats<WIDTH, COLUMNS, 2> &tile = *(Floats<WIDTH, COLUMNS, 2> *)dynamic_shared();
	long blocks = (a.keys + BLOCK_ROWS - 1) / BLOCK_ROWS, head = blockIdx.x / blocks, b = head / a.key_heads, group = head % a.key_heads;
	long left = blockIdx.x % blocks * BLOCK_ROWS, have = a.keys - left, shared = a.heads / a.key_heads;
	long first = a.bidirectional ? 0 : left, end = a.queries; // of the queries that see these keys
	if (a.window > 0 && left + BLOCK_ROWS - 1 + a.window < end) end = left + BLOCK_ROWS - 1 + a.window;
	const int N = COLUMNS / SIDE;
	float scale = a.scale(), keep = a.threshold == 0 ? 1 : a.keep, factor[THREAD_ROWS], one[THREAD_ROWS];
	SideSums<WIDTH> dkey, dvalue;
	dkey.clear();
	dvalue.clear();
	UNROLL for (int i = 0; i < THREAD_ROWS; i++) factor[i] = scale, one[i] = 1;
	fill_floats<WIDTH>(tile.held[0], BLOCK_ROWS, k + a.keys_at(b, group, left), a.key_row, have, a.s);
	fill_floats<WIDTH>(tile.held[1], BLOCK_ROWS, v + a.keys_at(b, group, left), a.key_row, have, a.s);
	for (long h = group * shared; h < (group + 1) * shared; h++) {
		const float *saved = lse + (b * a.heads + h) * a.queries, *mean = means + (b * a.heads + h) * a.queries;
		for (long top = first; top < end; top += COLUMNS) {
			__syncthreads();
			fill_floats<WIDTH>(tile.met[0], COLUMNS, q + a.queries_at(b, h, top), a.query_row, a.queries - top, a.s);
			fill_floats<WIDTH>(tile.met[1], COLUMNS, dout + a.out_at(b, h, top), a.heads * a.s, a.queries - top, a.s);
			__syncthreads();
			float p[THREAD_ROWS][N], ds[THREAD_ROWS][N]; // of rows of keys and columns of queries
			scores_of<WIDTH>(p, tile.held[0], tile.met[0]);
			scores_of<WIDTH>(ds, tile.held[1], tile.met[1]);
			unsigned seen = ~0u, kept = ~0u;
			if (!a.all_see(top, COLUMNS, left, BLOCK_ROWS)) seen = which_floats<N>([&](int row, int column) { return a.sees(b, top + column, left + row); });
			if (a.threshold != 0) kept = which_floats<N>([&](int row, int column) { return a.keeps(b, h, top + column, left + row); });
			UNROLL for (int j = 0; j < N; j++) {
				long query = top + side_column() + SIDE * j;
				float lse_of = query < a.queries ? saved[query] : 0, mean_of = query < a.queries ? mean[query] : 0;
				UNROLL for (int i = 0; i < THREAD_ROWS; i++) {
					float probability = seen >> (N * i + j) & 1 ? expf(p[i][j] * scale - lse_of) : 0;
					float left_of = kept >> (N * i + j) & 1 ? keep : 0;
					tile.weights[side_row() + i][side_column() + SIDE * j] = probability * left_of;
					ds[i][j] = probability * (ds[i][j] * left_of - mean_of);
				}
			}
			__syncthreads();
			dvalue.template add<COLUMNS>(tile.weights, tile.met[1]);
			__syncthreads();
			UNROLL for (int i = 0; i < THREAD_ROWS; i++) {
				UNROLL for (int j = 0; j < N; j++) tile.weights[side_row() + i][side_column() + SIDE * j] = ds[i][j];
			}
			__syncthreads();
			dkey.template add<COLUMNS>(tile.weights, tile.met[0]);
		}
	}
	dkey.store_rows(dk + a.keys_at(b, group, left), a.key_row, have, a.s, factor);
	dvalue.store_rows(dv + a.keys_at(b, group, left), a.key_row, have, a.s, one);
}

// The kernels, by the width that heads are padded to, with tiles of so many rows, and their shared memory, which dynamicShared of kernel.go has too.
#define FLOATS_FORWARD(WIDTH, COLUMNS, BYTES)                                                                                                   \
	(float *out, float *lse, const float *q, const float *k, const float *v, SHAPE) {                                                             \
		static_assert(sizeof(Floats<WIDTH, COLUMNS, 1>) == BYTES, "shared memory");                                                                  \
		Attended a = SHAPE_OF_KERNEL;                                                                                                                \
		attend_floats<WIDTH, COLUMNS>(a, out, lse, q, k, v);                                                                                         \
	}
#define FLOATS_QUERIES(WIDTH, COLUMNS, BYTES)                                                                                                   \
	(float *dq, float *means, const float *dout, const float *q, const float *k, const float *v, const float *out, const float *lse, SHAPE) {       \
		static_assert(sizeof(Floats<WIDTH, COLUMNS, 2>) == BYTES, "shared memory");                                                                  \
		Attended a = SHAPE_OF_KERNEL;                                                                                                                \
		queries_floats<WIDTH, COLUMNS>(a, dq, means, dout, q, k, v, out, lse);                                                                       \
	}
#define FLOATS_KEYS(WIDTH, COLUMNS, BYTES)                                                                                                      \
	(float *dk, float *dv, const float *means, const float *dout, const float *q, const float *k, const float *v, const float *lse, SHAPE) {       \
		static_assert(sizeof(Floats<WIDTH, COLUMNS, 2>) == BYTES, "shared memory");                                                                  \
		Attended a = SHAPE_OF_KERNEL;                                                                                                                \
		keys_floats<WIDTH, COLUMNS>(a, dk, dv, means, dout, q, k, v, lse);                                                                           \
	}

SIDES_KERNEL attention_floats_64 FLOATS_FORWARD(64, 64, 69632)
SIDES_KERNEL attention_floats_128 FLOATS_FORWARD(128, 32, 76800)
SIDES_KERNEL attention_queries_floats_64 FLOATS_QUERIES(64, 32, 61440)
SIDES_KERNEL attention_queries_floats_128 FLOATS_QUERIES(128, 16, 89600)
SIDES_KERNEL attention_keys_floats_64 FLOATS_KEYS(64, 32, 61440)
SIDES_KERNEL attention_keys_floats_128 FLOATS_KEYS(128, 16, 89600)
