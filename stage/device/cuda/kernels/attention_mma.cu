// Attention of bf16 by products of warps (Dao 2023). A block keeps HELD rows of some operands in registers, 16 for each of its warps, and meets
// tiles of two others in shared memory: one is computed with while the next is on its way. Scores live in registers alone, as the sums of one
// product, and become the left operand of the next: their layouts agree.
//
//	attend           holds q,        meets k and v
//	attend_queries   holds q, dout,  meets k and v     for dq
//	attend_keys      holds k, v,     meets q and dout  for dk and dv
//
// Heads of s elements are padded with zeros to WIDTH. Sums are floats. Probabilities and their gradients are rounded to bf16 for the second
// product, as those of PyTorch's autocast are.
#include "attention.cuh"
#include "mma.cuh"

#define WARPS 4
#define HELD (16 * WARPS)
#define WARPS_KERNEL KERNEL __launch_bounds__(32 * WARPS)

#define LOG2E 1.4426950408889634f
#define LN2 0.6931471805599453f

// Tiles are two pairs of tiles. Rows lie 8 elements further apart than they are wide: so eight of them, one below the other, lie in all banks.
template <int WIDTH, int ROWS> struct Tiles {
	typedef bf16 Row[WIDTH + 8];
	alignas(16) Row rows[4 * ROWS];

	// tile is the first or the second of the pair that step i meets.
	__device__ Row *tile(long i, int second) { return rows + (i % 2 * 2 + second) * ROWS; }
};

// begin_tile begins to load `count` rows of s elements, stride apart; those from `have` on are 0.
template <int WIDTH> DEVICE void begin_tile(bf16 (*tile)[WIDTH + 8], int count, const bf16 *from, long stride, long have, long s) {
	const int chunks = WIDTH / 8;
	bool aligned = ((unsigned long)from | (unsigned long)stride * sizeof(bf16)) % 16 == 0 && s % 8 == 0;
	ROLL for (int i = threadIdx.x; i < count * chunks; i += 32 * WARPS) {
		int row = i / chunks, column = i % chunks * 8;
		const bf16 *at = from + row * stride + column;
		bool present = row < have && column < s;
		if (aligned) {
			copy_16(&tile[row][column], present ? at : from, present);
			continue;
		}
		ROLL for (int c = 0; c < 8; c++) tile[row][column + c] = present && column + c < s ? at[c] : 0;
	}
}

// Held is a warp's 16 rows of an operand.
template <int WIDTH> struct Held {
	unsigned x[WIDTH / 16][4];

	// load takes them from HELD rows, which begin at `from` and of which there are `have`, by way of shared memory that nobody uses.
	__device__ void load(bf16 (*tile)[WIDTH + 8], const bf16 *from, long stride, long have, long s) {
		int lane = threadIdx.x % 32;
		begin_tile<WIDTH>(tile, HELD, from, stride, have, s);
		copies_begun();
		copies_ended<0>();
		__syncthreads();
		UNROLL for (int c = 0; c < WIDTH / 16; c++) load_matrices(x[c], &tile[threadIdx.x / 32 * 16 + lane % 16][c * 16 + lane / 16 * 8]);
		__syncthreads();
	}

	// dot multiplies by the rows of another: lane 4 g + t gets the sums of rows g and g + 8.
	__device__ void dot(const Held &y, float (&sums)[2]) const {
		sums[0] = sums[1] = 0;
		UNROLL for (int c = 0; c < WIDTH / 16; c++) {
			UNROLL for (int i = 0; i < 4; i++) {
				sums[i % 2] = fmaf(widen((bf16)x[c][i]), widen((bf16)y.x[c][i]), sums[i % 2]);
				sums[i % 2] = fmaf(widen(x[c][i] >> 16), widen(y.x[c][i] >> 16), sums[i % 2]);
			}
		}
		UNROLL for (int r = 0; r < 2; r++) sums[r] = over_row(sums[r], Sum());
	}

	// over_row reduces what the four lanes of a row have.
	template <class Reduce> static __device__ float over_row(float v, Reduce reduce) {
		v = reduce(v, __shfl_xor_sync(~0u, v, 1));
		return reduce(v, __shfl_xor_sync(~0u, v, 2));
	}
};

// Sums are 16 rows of a product, in the registers of a warp: lane 4 g + t has of columns 8 n + 2t and 8 n + 2t + 1 those of row g, then those
// of row g + 8.
template <int COLUMNS_OF> struct Sums {
	float x[COLUMNS_OF / 8][4];

	__device__ void clear() {
		UNROLL for (int n = 0; n < COLUMNS_OF / 8; n++) {
			UNROLL for (int i = 0; i < 4; i++) x[n][i] = 0;
		}
	}

	// The row of element i, and its column in the whole.
	static __device__ int row(int i) { return threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4 + i / 2 * 8; }
	static __device__ int column(int n, int i) { return n * 8 + threadIdx.x % 4 * 2 + i % 2; }

	// which is the set of the elements for whose row and column `of` holds: element i of columns n is bit 4 n + i.
	template <class Of> static __device__ unsigned which(Of of) {
		unsigned set = 0;
		ROLL for (int i = 0; i < COLUMNS_OF / 2; i++) set |= (of(row(i % 4), column(i / 4, i)) ? 1u : 0u) << i;
		return set;
	}

	// put sets the elements that a set lacks.
	__device__ void put(float v, unsigned set) {
		if (set == ~0u) return;
		UNROLL for (int i = 0; i < COLUMNS_OF / 2; i++) {
			if (!(set >> i & 1)) x[i / 4][i % 4] = v;
		}
	}

	// add_scores adds the products of held rows and rows of a tile.
	template <int WIDTH> __device__ void add_scores(const Held<WIDTH> &held, bf16 (*tile)[WIDTH + 8]) {
		int lane = threadIdx.x % 32;
		UNROLL for (int c = 0; c < WIDTH / 16; c++) {
			UNROLL for (int n = 0; n < COLUMNS_OF / 16; n++) {
				unsigned b[4];
				load_matrices(b, &tile[n * 16 + lane / 16 * 8 + lane % 8][c * 16 + lane / 8 % 2 * 8]);
				mma(x[2 * n], held.x[c], b[0], b[1]);
				mma(x[2 * n + 1], held.x[c], b[2], b[3]);
			}
		}
	}

	// add_weighted adds rows of a tile, weighted by other sums.
	template <int ROWS> __device__ void add_weighted(const Sums<ROWS> &weights, bf16 (*tile)[COLUMNS_OF + 8]) {
		int lane = threadIdx.x % 32;
		UNROLL for (int k = 0; k < ROWS / 16; k++) {
			const float(&low)[4] = weights.x[2 * k], (&high)[4] = weights.x[2 * k + 1];
			unsigned a[4] = {pair(low[0], low[1]), pair(low[2], low[3]), pair(high[0], high[1]), pair(high[2], high[3])};
			UNROLL for (int n = 0; n < COLUMNS_OF / 16; n++) {
				unsigned b[4];
				load_transposed(b, &tile[k * 16 + lane % 16][n * 16 + lane / 16 * 8]);
				mma(x[2 * n], a, b[0], b[1]);
				mma(x[2 * n + 1], a, b[2], b[3]);
			}
		}
	}

	// store writes the first s columns of the rows that there are, row r times factor[r].
	__device__ void store(bf16 *to, long stride, long have, long s, const float (&factor)[2]) const {
		bool aligned = ((unsigned long)to | (unsigned long)stride * sizeof(bf16)) % 4 == 0 && s % 2 == 0;
		UNROLL for (int r = 0; r < 2; r++) {
			if (row(2 * r) >= have) continue;
			UNROLL for (int n = 0; n < COLUMNS_OF / 8; n++) {
				bf16 *at = to + row(2 * r) * stride + column(n, 0);
				float low = x[n][2 * r] * factor[r], high = x[n][2 * r + 1] * factor[r];
				if (aligned && column(n, 0) < s) {
					*(unsigned *)at = pair(low, high);
					continue;
				}
				if (column(n, 0) < s) at[0] = narrow(low);
				if (column(n, 1) < s) at[1] = narrow(high);
			}
		}
	}
};

template <int WIDTH, int ROWS> DEVICE void attend(Tiles<WIDTH, ROWS> &tiles, const Attended &a, bf16 *out, float *lse, const bf16 *q, const bf16 *k,
                                                  const bf16 *v) {
	long blocks = (a.queries + HELD - 1) / HELD, head = blockIdx.x / blocks, b = head / a.heads, h = head % a.heads;
	long top = (blocks - 1 - blockIdx.x % blocks) * HELD, group = h / (a.heads / a.key_heads); // the block that sees most comes first
	long first = a.from(top), end = a.until(top + HELD), steps = (end - first + ROWS - 1) / ROWS;
	float scale = a.scale() * LOG2E, largest[2] = {-INFINITY, -INFINITY}, sum[2] = {};
	Held<WIDTH> query;
	Sums<WIDTH> o;
	o.clear();
	query.load(tiles.rows, q + a.queries_at(b, h, top), a.query_row, a.queries - top, a.s);
	for (long i = 0; i <= steps; i++) { // step i begins the loads of tile i, and computes with tile i - 1
		if (i < steps) {
			long left = first + i * ROWS;
			begin_tile<WIDTH>(tiles.tile(i, 0), ROWS, k + a.keys_at(b, group, left), a.key_row, a.keys - left, a.s);
			begin_tile<WIDTH>(tiles.tile(i, 1), ROWS, v + a.keys_at(b, group, left), a.key_row, a.keys - left, a.s);
		}
		copies_begun();
		if (i == 0) continue;
		copies_ended<1>();
		__syncthreads();
		long left = first + (i - 1) * ROWS;
		Sums<ROWS> p;
		p.clear();
		p.add_scores(query, tiles.tile(i - 1, 0));
		if (!a.all_see(top, HELD, left, ROWS)) p.put(-INFINITY, p.which([&](int row, int column) { return a.sees(b, top + row, left + column); }));
		float shrink[2], taken[2]; // the largest score, or 0 where no key was seen
		UNROLL for (int r = 0; r < 2; r++) {
			float now = largest[r];
			UNROLL for (int n = 0; n < ROWS / 8; n++) now = fmaxf(now, fmaxf(p.x[n][2 * r], p.x[n][2 * r + 1]) * scale);
			now = query.over_row(now, Max());
			taken[r] = now == -INFINITY ? 0 : now;
			shrink[r] = power(largest[r] - taken[r]);
			sum[r] *= shrink[r];
			largest[r] = now;
		}
		UNROLL for (int n = 0; n < ROWS / 8; n++) {
			UNROLL for (int e = 0; e < 4; e++) {
				float v = power(fmaf(p.x[n][e], scale, -taken[e / 2]));
				sum[e / 2] += v;
				p.x[n][e] = v;
			}
		}
		if (a.threshold != 0) p.put(0, p.which([&](int row, int column) { return a.keeps(b, h, top + row, left + column); }));
		UNROLL for (int n = 0; n < WIDTH / 8; n++) {
			UNROLL for (int e = 0; e < 4; e++) o.x[n][e] *= shrink[e / 2];
		}
		o.add_weighted(p, tiles.tile(i - 1, 1));
		__syncthreads();
	}
	float factor[2];
	UNROLL for (int r = 0; r < 2; r++) {
		sum[r] = query.over_row(sum[r], Sum());
		factor[r] = sum[r] == 0 ? 0 : (a.threshold == 0 ? 1 : a.keep) / sum[r];
		long row = top + o.row(2 * r);
		if (lse && threadIdx.x % 4 == 0 && row < a.queries) {
			lse[head * a.queries + row] = sum[r] == 0 ? INFINITY : fmaf(largest[r], LN2, logf(sum[r]));
		}
	}
	o.store(out + a.out_at(b, h, top), a.heads * a.s, a.queries - top, a.s, factor);
}

// attend_queries sets dq, and means to the products of dout and out by row, which attend_keys needs.
template <int WIDTH, int ROWS> DEVICE void attend_queries(Tiles<WIDTH, ROWS> &tiles, const Attended &a, bf16 *dq, float *means, const bf16 *dout,
                                                          const bf16 *q, const bf16 *k, const bf16 *v, const bf16 *out, const float *lse) {
	long blocks = (a.queries + HELD - 1) / HELD, head = blockIdx.x / blocks, b = head / a.heads, h = head % a.heads;
	long top = (blocks - 1 - blockIdx.x % blocks) * HELD, group = h / (a.heads / a.key_heads), have = a.queries - top;
	long first = a.from(top), end = a.until(top + HELD), steps = (end - first + ROWS - 1) / ROWS;
	float scale = a.scale() * LOG2E, keep = a.threshold == 0 ? 1 : a.keep, mean[2], saved[2];
	Held<WIDTH> query, gradient;
	Sums<WIDTH> sums;
	sums.clear();
	query.load(tiles.rows, out + a.out_at(b, h, top), a.heads * a.s, have, a.s);
	gradient.load(tiles.rows, dout + a.out_at(b, h, top), a.heads * a.s, have, a.s);
	gradient.dot(query, mean);
	query.load(tiles.rows, q + a.queries_at(b, h, top), a.query_row, have, a.s);
	UNROLL for (int r = 0; r < 2; r++) {
		long row = head * a.queries + top + sums.row(2 * r);
		bool there = sums.row(2 * r) < have;
		saved[r] = there ? lse[row] * LOG2E : 0;
		if (there && threadIdx.x % 4 == 0) means[row] = mean[r];
	}
	for (long i = 0; i <= steps; i++) {
		if (i < steps) {
			long left = first + i * ROWS;
			begin_tile<WIDTH>(tiles.tile(i, 0), ROWS, k + a.keys_at(b, group, left), a.key_row, a.keys - left, a.s);
			begin_tile<WIDTH>(tiles.tile(i, 1), ROWS, v + a.keys_at(b, group, left), a.key_row, a.keys - left, a.s);
		}
		copies_begun();
		if (i == 0) continue;
		copies_ended<1>();
		__syncthreads();
		long left = first + (i - 1) * ROWS;
		Sums<ROWS> p, ds;
		p.clear();
		ds.clear();
		p.add_scores(query, tiles.tile(i - 1, 0));
		ds.add_scores(gradient, tiles.tile(i - 1, 1));
		unsigned seen = ~0u;
		if (!a.all_see(top, HELD, left, ROWS)) seen = p.which([&](int row, int column) { return a.sees(b, top + row, left + column); });
		p.put(-INFINITY, seen);
		if (a.threshold != 0) ds.put(0, p.which([&](int row, int column) { return a.keeps(b, h, top + row, left + column); }));
		UNROLL for (int n = 0; n < ROWS / 8; n++) {
			UNROLL for (int e = 0; e < 4; e++) ds.x[n][e] = power(fmaf(p.x[n][e], scale, -saved[e / 2])) * fmaf(ds.x[n][e], keep, -mean[e / 2]);
		}
		ds.put(0, seen);
		sums.add_weighted(ds, tiles.tile(i - 1, 0));
		__syncthreads();
	}
	float factor[2] = {a.scale(), a.scale()};
	sums.store(dq + a.queries_at(b, h, top), a.query_row, have, a.s, factor);
}

// Means is what attend_keys needs of the queries of a tile, and of that of the next step.
template <int ROWS> struct Means {
	float lse[2][ROWS], mean[2][ROWS];
};

// attend_keys sets dk and dv: the sums have the queries of all heads that share the keys, in their order.
template <int WIDTH, int ROWS> DEVICE void attend_keys(Tiles<WIDTH, ROWS> &tiles, Means<ROWS> &of, const Attended &a, bf16 *dk, bf16 *dv,
                                                       const float *means, const bf16 *dout, const bf16 *q, const bf16 *k, const bf16 *v,
                                                       const float *lse) {
	long blocks = (a.keys + HELD - 1) / HELD, head = blockIdx.x / blocks, b = head / a.key_heads, group = head % a.key_heads;
	long left = blockIdx.x % blocks * HELD, have = a.keys - left, shared = a.heads / a.key_heads;
	long first = a.bidirectional ? 0 : left, end = a.queries; // of the queries that see these keys
	if (a.window > 0 && left + HELD - 1 + a.window < end) end = left + HELD - 1 + a.window;
	long tiles_of_head = (end - first + ROWS - 1) / ROWS, steps = tiles_of_head * shared;
	float scale = a.scale() * LOG2E, keep = a.threshold == 0 ? 1 : a.keep;
	Held<WIDTH> keyed, value;
	Sums<WIDTH> dkey, dvalue;
	dkey.clear();
	dvalue.clear();
	keyed.load(tiles.rows, k + a.keys_at(b, group, left), a.key_row, have, a.s);
	value.load(tiles.rows, v + a.keys_at(b, group, left), a.key_row, have, a.s);
	for (long i = 0; i <= steps; i++) {
		if (i < steps) {
			long h = group * shared + i / tiles_of_head, top = first + i % tiles_of_head * ROWS;
			begin_tile<WIDTH>(tiles.tile(i, 0), ROWS, q + a.queries_at(b, h, top), a.query_row, a.queries - top, a.s);
			begin_tile<WIDTH>(tiles.tile(i, 1), ROWS, dout + a.out_at(b, h, top), a.heads * a.s, a.queries - top, a.s);
			if (threadIdx.x < ROWS) {
				bool there = top + threadIdx.x < a.queries;
				long row = there ? (b * a.heads + h) * a.queries + top + threadIdx.x : 0;
				copy_4(&of.lse[i % 2][threadIdx.x], lse + row, there);
				copy_4(&of.mean[i % 2][threadIdx.x], means + row, there);
			}
		}
		copies_begun();
		if (i == 0) continue;
		copies_ended<1>();
		__syncthreads();
		long met = i - 1, h = group * shared + met / tiles_of_head, top = first + met % tiles_of_head * ROWS;
		Sums<ROWS> p, ds; // of rows of keys and columns of queries
		p.clear();
		ds.clear();
		p.add_scores(keyed, tiles.tile(met, 0));
		ds.add_scores(value, tiles.tile(met, 1));
		unsigned seen = ~0u, kept = ~0u;
		if (!a.all_see(top, ROWS, left, HELD)) seen = p.which([&](int row, int column) { return a.sees(b, top + column, left + row); });
		if (a.threshold != 0) kept = p.which([&](int row, int column) { return a.keeps(b, h, top + column, left + row); });
		p.put(-INFINITY, seen);
		ds.put(0, kept);
		UNROLL for (int n = 0; n < ROWS / 8; n++) {
			UNROLL for (int e = 0; e < 4; e++) {
				int column = p.column(n, e);
				p.x[n][e] = power(fmaf(p.x[n][e], scale, -of.lse[met % 2][column] * LOG2E));
				ds.x[n][e] = p.x[n][e] * fmaf(ds.x[n][e], keep, -of.mean[met % 2][column]);
			}
		}
		p.put(0, kept);
		ds.put(0, seen);
		dvalue.add_weighted(p, tiles.tile(met, 1));
		dkey.add_weighted(ds, tiles.tile(met, 0));
		__syncthreads();
	}
	float factor[2] = {a.scale(), a.scale()}, kept[2] = {keep, keep};
	dkey.store(dk + a.keys_at(b, group, left), a.key_row, have, a.s, factor);
	dvalue.store(dv + a.keys_at(b, group, left), a.key_row, have, a.s, kept);
}

// The kernels, by the width that heads are padded to, with tiles of so many rows.
#define FORWARD(WIDTH, ROWS)                                                                                                                    \
	(bf16 *out, float *lse, const bf16 *q, const bf16 *k, const bf16 *v, SHAPE) {                                                                 \
		__shared__ Tiles<WIDTH, ROWS> tiles;                                                                                                         \
		Attended a = SHAPE_OF_KERNEL;                                                                                                                \
		attend(tiles, a, out, lse, q, k, v);                                                                                                         \
	}
#define BACKWARD_QUERIES(WIDTH, ROWS)                                                                                                           \
	(bf16 *dq, float *means, const bf16 *dout, const bf16 *q, const bf16 *k, const bf16 *v, const bf16 *out, const float *lse, SHAPE) {             \
		__shared__ Tiles<WIDTH, ROWS> tiles;                                                                                                         \
		Attended a = SHAPE_OF_KERNEL;                                                                                                                \
		attend_queries(tiles, a, dq, means, dout, q, k, v, out, lse);                                                                                \
	}
#define BACKWARD_KEYS(WIDTH, ROWS)                                                                                                              \
	(bf16 *dk, bf16 *dv, const float *means, const bf16 *dout, const bf16 *q, const bf16 *k, const bf16 *v, const float *lse, SHAPE) {             \
		__shared__ Tiles<WIDTH, ROWS> tiles;                                                                                                         \
		__shared__ Means<ROWS> of;                                                                                                                   \
		Attended a = SHAPE_OF_KERNEL;                                                                                                                \
		attend_keys(tiles, of, a, dk, dv, means, dout, q, k, v, lse);                                                                                \
	}

WARPS_KERNEL attention_64 FORWARD(64, 64)
WARPS_KERNEL attention_128 FORWARD(128, 32)
WARPS_KERNEL attention_queries_64 BACKWARD_QUERIES(64, 64)
WARPS_KERNEL attention_queries_128 BACKWARD_QUERIES(128, 32)
WARPS_KERNEL attention_keys_64 BACKWARD_KEYS(64, 32)
WARPS_KERNEL attention_keys_128 BACKWARD_KEYS(128, 16)
