// Attention by tiles of queries and keys, which never stores the scores (Dao et al. 2022): products in float, for all shapes.
#include "attention.cuh"

// What tiles hold at most. Their rows lie one element further apart than they are wide, so that a column lies in as many banks.
#define QUERIES 16
#define KEYS 32
#define QUERY_FLOATS 1024
#define KEY_FLOATS 2048

// Tiles have query_rows and key_rows rows.
#define TILED SHAPE, long query_rows, long key_rows

// kept is what dropout multiplies the probability of a pair by.
DEVICE float kept(const Attended &a, long b, long h, long i, long j) {
	if (a.threshold == 0) return 1;
	return a.keeps(b, h, i, j) ? a.keep : 0;
}

// fill loads rows of s elements, stride apart, into a tile; those from `have` on are 0.
DEVICE void fill(float *tile, In x, long at, long stride, long rows, long have, long s) {
	for (long i = threadIdx.x; i < rows * s; i += blockDim.x) tile[i / s * (s + 1) + i % s] = i / s < have ? x[at + i / s * stride + i % s] : 0;
}

// dot multiplies a row of one tile by a row of another.
DEVICE float dot(const float *x, long i, const float *y, long j, long s) {
	float sum = 0;
	for (long c = 0; c < s; c++) sum = fmaf(x[i * (s + 1) + c], y[j * (s + 1) + c], sum);
	return sum;
}

// along is the sum over n rows of a tile of weights, stride apart, times column c.
DEVICE float along(const float *weights, long stride, const float *tile, long n, long c, long s) {
	float sum = 0;
	for (long i = 0; i < n; i++) sum = fmaf(weights[i * stride], tile[i * (s + 1) + c], sum);
	return sum;
}

// attention is device.Attention and device.CachedAttention: a block has a tile of queries, and an online softmax over tiles of keys (Milakov and
// Gimelshein 2018).
KERNEL attention(void *out, float *lse, const void *q, const void *k, const void *v, int brain, TILED) {
	__shared__ float qs[QUERY_FLOATS + QUERIES], ks[KEY_FLOATS + KEYS], p[QUERIES][KEYS], largest[QUERIES], sum[QUERIES], shrink[QUERIES];
	Attended a = SHAPE_OF_KERNEL;
	long tiles = (queries + query_rows - 1) / query_rows, head = blockIdx.x / tiles, b = head / heads, h = head % heads;
	long top = blockIdx.x % tiles * query_rows, group = h / (heads / key_heads);
	In query(q, brain), keyed(k, brain), value(v, brain);
	float o[QUERY_FLOATS / 256] = {};
	fill(qs, query, a.queries_at(b, h, top), query_row, query_rows, queries - top, s);
	if (threadIdx.x < QUERIES) {
		largest[threadIdx.x] = -INFINITY;
		sum[threadIdx.x] = 0;
	}
	for (long left = a.from(top); left < a.until(top + query_rows); left += key_rows) {
		__syncthreads();
		fill(ks, keyed, a.keys_at(b, group, left), key_row, key_rows, keys - left, s);
		__syncthreads();
		for (long i = threadIdx.x; i < query_rows * key_rows; i += blockDim.x) {
			long row = i / key_rows, column = i % key_rows;
			p[row][column] = a.sees(b, top + row, left + column) ? dot(qs, row, ks, column, s) * a.scale() : -INFINITY;
		}
		__syncthreads();
		if (threadIdx.x < query_rows) {
			long row = threadIdx.x;
			float now = largest[row], added = 0;
			for (long j = 0; j < key_rows; j++) now = Max()(p[row][j], now);
			for (long j = 0; j < key_rows; j++) {
				float v = now == -INFINITY ? 0 : expf(p[row][j] - now);
				added += v;
				p[row][j] = v * kept(a, b, h, top + row, left + j);
			}
			shrink[row] = now == -INFINITY ? 1 : expf(largest[row] - now);
			sum[row] = sum[row] * shrink[row] + added;
			largest[row] = now;
		}
		fill(ks, value, a.keys_at(b, group, left), key_row, key_rows, keys - left, s);
		__syncthreads();
		for (long n = 0, i = threadIdx.x; i < query_rows * s; n++, i += blockDim.x) {
			o[n] = o[n] * shrink[i / s] + along(p[i / s], 1, ks, key_rows, i % s, s);
		}
	}
	__syncthreads();
	Out result(out, brain);
	for (long n = 0, i = threadIdx.x; i < query_rows * s; n++, i += blockDim.x) {
		if (top + i / s < queries) result.set(a.out_at(b, h, top + i / s) + i % s, sum[i / s] == 0 ? 0 : o[n] / sum[i / s]);
	}
	if (lse && threadIdx.x < query_rows && top + threadIdx.x < queries) {
		lse[head * queries + top + threadIdx.x] = sum[threadIdx.x] == 0 ? INFINITY : largest[threadIdx.x] + logf(sum[threadIdx.x]);
	}
}

// Pairs is a tile of queries beside a tile of keys in a backward (Dao et al. 2022, appendix B.2): with P the probabilities and D the products of
// dout and out by row, dS = P (dout v^T - D) / sqrt(S). With dropout, dout v^T and the P of dv are what is left of them.
struct Pairs {
	float q[QUERY_FLOATS + QUERIES], dout[QUERY_FLOATS + QUERIES], k[KEY_FLOATS + KEYS], v[KEY_FLOATS + KEYS];
	float p[QUERIES][KEYS], ds[QUERIES][KEYS], d[QUERIES], lse[QUERIES];

	// queries loads a tile of queries and what goes with them.
	__device__ void load(const Attended &a, In query, In gradient, In out, const float *saved, long b, long h, long top, long rows) {
		fill(q, query, a.queries_at(b, h, top), a.query_row, rows, a.queries - top, a.s);
		fill(dout, gradient, a.out_at(b, h, top), a.heads * a.s, rows, a.queries - top, a.s);
		__syncthreads();
		if (threadIdx.x < rows && top + threadIdx.x < a.queries) {
			long i = threadIdx.x, at = a.out_at(b, h, top + i);
			float sum = 0;
			for (long c = 0; c < a.s; c++) sum = fmaf(dout[i * (a.s + 1) + c], out[at + c], sum);
			d[i] = sum;
			lse[i] = saved[(b * a.heads + h) * a.queries + top + i];
		}
		__syncthreads();
	}

	__device__ void compute(const Attended &a, long b, long h, long top, long left, long rows, long columns) {
		for (long i = threadIdx.x; i < rows * columns; i += blockDim.x) {
			long row = i / columns, column = i % columns;
			p[row][column] = ds[row][column] = 0;
			if (!a.sees(b, top + row, left + column)) continue;
			float probability = expf(dot(q, row, k, column, a.s) * a.scale() - lse[row]), kept = ::kept(a, b, h, top + row, left + column);
			p[row][column] = probability * kept;
			ds[row][column] = probability * (dot(dout, row, v, column, a.s) * kept - d[row]) * a.scale();
		}
		__syncthreads();
	}
};

// attention_backward_queries sets dq: a block has a tile of queries.
KERNEL attention_backward_queries(void *dq, const void *dout, const void *q, const void *k, const void *v, const void *out, const float *lse,
                                  int brain, TILED) {
	__shared__ Pairs tile;
	Attended a = SHAPE_OF_KERNEL;
	long tiles = (queries + query_rows - 1) / query_rows, head = blockIdx.x / tiles, b = head / heads, h = head % heads;
	long top = blockIdx.x % tiles * query_rows, group = h / (heads / key_heads);
	float sums[QUERY_FLOATS / 256] = {};
	tile.load(a, In(q, brain), In(dout, brain), In(out, brain), lse, b, h, top, query_rows);
	for (long left = a.from(top); left < a.until(top + query_rows); left += key_rows) {
		fill(tile.k, In(k, brain), a.keys_at(b, group, left), key_row, key_rows, keys - left, s);
		fill(tile.v, In(v, brain), a.keys_at(b, group, left), key_row, key_rows, keys - left, s);
		__syncthreads();
		tile.compute(a, b, h, top, left, query_rows, key_rows);
		for (long n = 0, i = threadIdx.x; i < query_rows * s; n++, i += blockDim.x) {
			sums[n] += along(tile.ds[i / s], 1, tile.k, key_rows, i % s, s);
		}
		__syncthreads();
	}
	Out result(dq, brain);
	for (long n = 0, i = threadIdx.x; i < query_rows * s; n++, i += blockDim.x) {
		if (top + i / s < queries) result.set(a.queries_at(b, h, top + i / s) + i % s, sums[n]);
	}
}

// attention_backward_keys sets dk and dv: a block has a tile of keys, and meets the queries of all heads that share it in their order.
KERNEL attention_backward_keys(void *dk, void *dv, const void *dout, const void *q, const void *k, const void *v, const void *out,
                               const float *lse, int brain, TILED) {
	__shared__ Pairs tile;
	Attended a = SHAPE_OF_KERNEL;
	long tiles = (keys + key_rows - 1) / key_rows, head = blockIdx.x / tiles, b = head / key_heads, group = head % key_heads;
	long left = blockIdx.x % tiles * key_rows, shared = heads / key_heads;
	float dks[KEY_FLOATS / 256] = {}, dvs[KEY_FLOATS / 256] = {};
	fill(tile.k, In(k, brain), a.keys_at(b, group, left), key_row, key_rows, keys - left, s);
	fill(tile.v, In(v, brain), a.keys_at(b, group, left), key_row, key_rows, keys - left, s);
	for (long h = group * shared; h < (group + 1) * shared; h++) {
		for (long top = bidirectional ? 0 : left / query_rows * query_rows; top < queries; top += query_rows) {
			if (a.from(top) >= left + key_rows) break;
			tile.load(a, In(q, brain), In(dout, brain), In(out, brain), lse, b, h, top, query_rows);
			tile.compute(a, b, h, top, left, query_rows, key_rows);
			for (long n = 0, i = threadIdx.x; i < key_rows * s; n++, i += blockDim.x) {
				dks[n] += along(&tile.ds[0][i / s], KEYS, tile.q, query_rows, i % s, s);
				dvs[n] += along(&tile.p[0][i / s], KEYS, tile.dout, query_rows, i % s, s);
			}
			__syncthreads();
		}
	}
	Out dkey(dk, brain), dvalue(dv, brain);
	for (long n = 0, i = threadIdx.x; i < key_rows * s; n++, i += blockDim.x) {
		if (left + i / s >= keys) continue;
		dkey.set(a.keys_at(b, group, left + i / s) + i % s, dks[n]);
		dvalue.set(a.keys_at(b, group, left + i / s) + i % s, dvs[n]);
	}
}

// cache_append is device.CacheAppend.
KERNEL cache_append(void *cache, const void *x, int brain, long t, long heads, long s, long stride, long capacity, long past, long n) {
	Out out(cache, brain);
	In in(x, brain);
	for (EACH(i, n)) {
		long of_head = quotient(i, s), row = quotient(of_head, heads), h = of_head - row * heads, c = i - of_head * s, b = quotient(row, t);
		out.set(((b * heads + h) * capacity + past + row - b * t) * s + c, in[row * stride + h * s + c]);
	}
}

// rotate is device.Rotate: table has S/2 cosines and S/2 sines for each position. A thread turns a pair.
KERNEL rotate(void *y, const void *x, int brain, const float *table, long t, long heads, long s, int inverse, long n) {
	Out out(y, brain);
	In in(x, brain);
	long half = s / 2;
	for (EACH(i, n)) {
		long head = quotient(i, half), c = i - head * half, at = head * s + c, row = quotient(head, heads);
		const float *angles = table + (row - quotient(row, t) * t) * s;
		float cos = angles[c], sin = inverse ? -angles[half + c] : angles[half + c], a = in[at], b = in[at + half];
		out.set(at, a * cos - b * sin);
		out.set(at + half, b * cos + a * sin);
	}
}
