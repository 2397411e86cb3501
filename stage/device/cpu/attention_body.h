// Attention of the query heads of one sample that share a head of keys, flash style (Dao et al. 2022): ROW_BLOCK queries at a
// time against all keys that they see, so that the scores (ROW_BLOCK, T) stay in the cache; the backward pass recomputes
// them. Included by kernels_body.h only.
//
// The operands of the products are packed into rows that are padded with zeros to whole vectors: P = pad(S) and, for what
// is transposed, pad(T). Where a row of probabilities ends within its block the rest is 0.

enum { TILE_ROWS = 6, ROW_BLOCK = 24 };

INLINE size_t pad(size_t n) { return (n + WIDTH - 1) / WIDTH * WIDTH; }

// tile sets (or adds to) c (rows, vectors * WIDTH) the product of a (rows, k), whose element (r, i) lies at
// r * row_step + i * step, and b (k, vectors * WIDTH). rows and vectors are constants where it is inlined.
INLINE void tile(int rows, int vectors, size_t k, const float *a, size_t row_step, size_t step, const float *b, size_t ldb,
                 float *c, size_t ldc, int accumulate) {
    vec sums[TILE_ROWS][TILE_VECTORS];
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++) sums[r][v] = accumulate ? load(c + r * ldc + v * WIDTH) : splat(0);
    for (size_t i = 0; i < k; i++, a += step, b += ldb) {
        vec bs[TILE_VECTORS];
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++) bs[v] = load(b + v * WIDTH);
#pragma GCC unroll 6
        for (int r = 0; r < rows; r++) {
            vec x = splat(a[r * row_step]);
#pragma GCC unroll 4
            for (int v = 0; v < vectors; v++) sums[r][v] = fused(x, bs[v], sums[r][v]);
        }
    }
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++) store(c + r * ldc + v * WIDTH, sums[r][v]);
}

// Operands of a product C (m,n) = [C +] A (m,k) B (k,n), n a multiple of WIDTH.
struct product {
    size_t m, n, k;
    const float *a;
    size_t row_step, step;  // element (r, i) of A lies at r * row_step + i * step
    const float *b;
    size_t ldb;
    float *c;
    size_t ldc;
    int accumulate;
};

// strip computes `vectors` vectors of columns, from column n0.
INLINE void strip(const struct product *p, size_t n0, int vectors) {
#define TILE(rows)                                                                                                     \
    tile(rows, vectors, p->k, p->a + m * p->row_step, p->row_step, p->step, p->b + n0, p->ldb, p->c + m * p->ldc + n0, \
         p->ldc, p->accumulate)
    size_t m = 0;
    for (; m + TILE_ROWS <= p->m; m += TILE_ROWS) TILE(TILE_ROWS);
    switch (p->m - m) {
        case 1: TILE(1); break;
        case 2: TILE(2); break;
        case 3: TILE(3); break;
        case 4: TILE(4); break;
        case 5: TILE(5); break;
    }
#undef TILE
}

static void multiply(const struct product *p) {
    size_t n = 0;
    for (; n + TILE_VECTORS * WIDTH <= p->n; n += TILE_VECTORS * WIDTH) strip(p, n, TILE_VECTORS);
    switch ((p->n - n) / WIDTH) {
        case 1: strip(p, n, 1); break;
#if TILE_VECTORS == 4
        case 2: strip(p, n, 2); break;
        case 3: strip(p, n, 3); break;
#endif
    }
}

// near asks for what a walk down rows `stride` apart needs in NEAR rows, which the processor does not foresee.
enum { NEAR = 16 };

INLINE void near(const void *x, size_t at, size_t stride, int bf16) {
    __builtin_prefetch((const char *)x + (at + NEAR * stride) * (bf16 ? 2 : 4));
}

// pack copies x (T,S), from element `at` on in rows `stride` apart, to packed (T,P).
INLINE void pack(float *packed, const void *x, size_t at, size_t stride, size_t t, size_t s, int bf16) {
    for (size_t r = 0; r < t; r++, at += stride, packed += pad(s))
        LANES(s, near(x, at + i, stride, bf16); store(packed + i, fetch(x, at + i, part, bf16)););
}

// pack_transposed copies factor * x (T,S) to packed (S, pad(T)).
INLINE void pack_transposed(float *packed, const void *x, size_t stride, size_t t, size_t s, float factor, int bf16) {
    const size_t width = pad(t);
    for (size_t from = 0; from < t; from += WIDTH) {
        const size_t rows = t - from < WIDTH ? t - from : WIDTH;
        LANES(s, vec block[WIDTH] = {{0}};
              for (size_t r = 0; r < rows; r++) {
                  near(x, (from + r) * stride + i, stride, bf16);
                  block[r] = fetch(x, (from + r) * stride + i, part, bf16) * factor;
              }
              transpose(block);
              for (size_t c = 0; c < part; c++) store(packed + (i + c) * width + from, block[c]););
    }
}

// unpack copies factor * packed (T,P) to x (T,S), from element `at` on in rows `stride` apart.
INLINE void unpack(void *x, const float *packed, size_t at, size_t stride, size_t t, size_t s, float factor, int bf16) {
    size_t p = pad(s);
    for (size_t r = 0; r < t; r++, at += stride, packed += p)
        LANES(s, near(x, at + i, stride, bf16); keep(x, at + i, load(packed + i) * factor, part, bf16););
}

static size_t attention_scratch(size_t t, size_t s, int backward) {
    size_t rows = t * pad(s), columns = s * pad(t), scores = ROW_BLOCK * pad(t), block = ROW_BLOCK * pad(s);
    return backward ? 5 * rows + 2 * columns + 2 * scores + block + pad(t) : rows + columns + scores + 2 * block + pad(t);
}

// hidden writes what is added to the scores (T): -infinity where the mask hides a key. It returns NULL without a mask.
INLINE const float *hidden(float *bias, const struct heads *h) {
    if (!h->mask) return NULL;
    for (size_t i = 0; i < h->t; i++) bias[i] = h->mask[i] ? 0 : -INFINITY;
    return bias;
}

INLINE void hide(float *scores, const float *bias, size_t low, size_t n) {
    if (bias) LANES(n, put(scores + i, get(scores + i, part) + get(bias + low + i, part), part););
}

// softmax_row turns the n scores of a row into exponentials, the rest up to `seen` into 0. It returns the reciprocal of their
// sum and sets *lse to its logarithm: 0 and infinity when all scores are -infinity.
INLINE float softmax_row(float *row, size_t n, size_t seen, float *lse) {
    float top = largest_of(row, n);
    if (top == -INFINITY) {
        memset(row, 0, seen * sizeof *row);
        *lse = INFINITY;
        return 0;
    }
    float sum = exps(row, row, top, n);
    memset(row + n, 0, (seen - n) * sizeof *row);
    *lse = top + logf(sum);
    return 1 / sum;
}

// drop drops elements of the n that a row of probabilities, or of their gradients, holds from key `low` on.
INLINE void drop(float *row, size_t low, size_t n, const struct heads *h, size_t head, size_t query) {
    if (h->dropout.threshold) dropout_of(row, row, n, 1, n, h->first + (head * h->t + query) * h->t + low, h->dropout, 0);
}

// first_seen is the first key that a query sees.
INLINE size_t first_seen(const struct heads *h, size_t query) {
    return h->window && query >= h->window ? query + 1 - h->window : 0;
}

// blind hides the keys of a row, which begins at key `low`, before the first one that the query sees.
INLINE void blind(float *row, size_t low, const struct heads *h, size_t query) {
    for (size_t key = low; key < first_seen(h, query); key++) row[key - low] = -INFINITY;
}

INLINE void attention_of(const struct heads *h, float *scratch, int bf16) {
    const size_t t = h->t, s = h->s, p = pad(s), width = pad(t);
    float *v = scratch, *k = v + t * p, *scores = k + s * width, *out = scores + ROW_BLOCK * width;
    float *q = out + ROW_BLOCK * p;
    const float *bias = hidden(q + ROW_BLOCK * p, h);
    pack(v, h->v, 0, h->kv_stride, t, s, bf16);
    pack_transposed(k, h->k, h->kv_stride, t, s, (float)(1 / sqrt((double)s)), bf16);
    for (size_t head = 0; head < h->heads; head++) {
        for (size_t from = 0; from < t; from += ROW_BLOCK) {
            size_t rows = t - from < ROW_BLOCK ? t - from : ROW_BLOCK, seen = h->bidirectional ? t : from + rows;
            size_t low = first_seen(h, from) / WIDTH * WIDTH;  // no row of the block sees a key before it
            pack(q, h->q, from * h->q_stride + head * s, h->q_stride, rows, s, bf16);
            multiply(&(struct product){rows, pad(seen) - low, s, q, p, 1, k + low, width, scores, width, 0});
            float inverse[ROW_BLOCK];
            for (size_t r = 0; r < rows; r++) {
                size_t n = (h->bidirectional ? t : from + r + 1) - low;
                float lse;
                blind(scores + r * width, low, h, from + r);
                hide(scores + r * width, bias, low, n);
                inverse[r] = softmax_row(scores + r * width, n, seen - low, &lse);
                if (h->lse) h->lse[head * t + from + r] = lse;
                drop(scores + r * width, low, n, h, head, from + r);
            }
            multiply(&(struct product){rows, p, seen - low, scores, width, 1, v + low * p, p, out, p, 0});
            for (size_t r = 0; r < rows; r++)
                unpack(h->out, out + r * p, (from + r) * h->out_stride + head * s, h->out_stride, 1, s, inverse[r], bf16);
        }
    }
}

static void attention(const struct heads *h, float *scratch) {
    if (h->bf16)
        attention_of(h, scratch, 1);
    else
        attention_of(h, scratch, 0);
}

// dscores turns scores into probabilities P = exp(score - lse) and, beside them, dprobabilities into
// dS = P (dP - D) with D = dout . out. What lies beyond the causal limit becomes 0.
INLINE void dscores(float *scores, float *dprobabilities, size_t n, size_t seen, float lse, float d) {
    exps(scores, scores, lse, n);
    LANES(n, put(dprobabilities + i, get(scores + i, part) * (get(dprobabilities + i, part) - d), part););
    memset(scores + n, 0, (seen - n) * sizeof *scores);
    memset(dprobabilities + n, 0, (seen - n) * sizeof *scores);
}

// inner is the inner product of packed x and the elements of y from `at` on, in rows `stride` apart.
INLINE float inner(const float *x, const void *y, size_t at, size_t stride, size_t n, int bf16) {
    vec sum = {0};
    LANES(n, near(y, at + i, stride, bf16); sum = fused(get(x + i, part), fetch(y, at + i, part, bf16), sum););
    return total(sum);
}

// The equations are those of Dao et al. 2022, appendix B.2; with dropout, algorithm 4.
INLINE void attention_backward_of(const struct heads *h, float *scratch, int bf16) {
    const size_t t = h->t, s = h->s, p = pad(s), width = pad(t);
    const float factor = (float)(1 / sqrt((double)s));
    float *q = scratch, *k = q + t * p, *dout = k + t * p, *dk = dout + t * p, *dv = dk + t * p;
    float *kt = dv + t * p, *vt = kt + s * width, *scores = vt + s * width, *ds = scores + ROW_BLOCK * width;
    float *dq = ds + ROW_BLOCK * width;
    const float *bias = hidden(dq + ROW_BLOCK * p, h);
    pack(k, h->k, 0, h->kv_stride, t, s, bf16);
    pack_transposed(kt, h->k, h->kv_stride, t, s, factor, bf16);
    pack_transposed(vt, h->v, h->kv_stride, t, s, 1, bf16);
    memset(dk, 0, 2 * t * p * sizeof *dk);
    for (size_t head = 0; head < h->heads; head++) {
        const size_t column = head * s;
        const float *lse = h->lse + head * t;
        pack(q, h->q, column, h->q_stride, t, s, bf16);
        pack(dout, h->dout, column, h->out_stride, t, s, bf16);
        for (size_t from = 0; from < t; from += ROW_BLOCK) {
            size_t rows = t - from < ROW_BLOCK ? t - from : ROW_BLOCK, seen = h->bidirectional ? t : from + rows;
            const size_t low = first_seen(h, from) / WIDTH * WIDTH, keys = seen - low;
            const float *qs = q + from * p, *douts = dout + from * p;
            multiply(&(struct product){rows, pad(seen) - low, s, qs, p, 1, kt + low, width, scores, width, 0});
            multiply(&(struct product){rows, pad(seen) - low, s, douts, p, 1, vt + low, width, ds, width, 0});
            for (size_t r = 0; r < rows; r++) {
                size_t row = from + r, n = (h->bidirectional ? t : row + 1) - low;
                float d = inner(douts + r * p, h->out, row * h->out_stride + column, h->out_stride, s, bf16);
                blind(scores + r * width, low, h, row);
                hide(scores + r * width, bias, low, n);
                drop(ds + r * width, low, n, h, head, row);
                dscores(scores + r * width, ds + r * width, n, keys, lse[row], d);
                drop(scores + r * width, low, n, h, head, row);
            }
            multiply(&(struct product){rows, p, keys, ds, width, 1, k + low * p, p, dq, p, 0});
            unpack(h->dq, dq, from * h->q_stride + column, h->q_stride, rows, s, factor, bf16);
            multiply(&(struct product){keys, p, rows, ds, 1, width, qs, p, dk + low * p, p, 1});
            multiply(&(struct product){keys, p, rows, scores, 1, width, douts, p, dv + low * p, p, 1});
        }
    }
    unpack(h->dk, dk, 0, h->kv_stride, t, s, factor, bf16);
    unpack(h->dv, dv, 0, h->kv_stride, t, s, 1, bf16);
}

static void attention_backward(const struct heads *h, float *scratch) {
    if (h->bf16)
        attention_backward_of(h, scratch, 1);
    else
        attention_backward_of(h, scratch, 0);
}
