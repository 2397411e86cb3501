// Attention of the query heads of one sample that share a head of keys, flash style (Dao et al. 2022): ROW_BLOCK queries at a
// time against a tile of the keys that they see, so that scores and keys stay in the caches; the backward pass computes the
// scores again. Included by kernels_body.h only.
//
// The operands of the products are packed into rows that are padded with zeros to whole vectors, P = pad(S); scores, and what is
// transposed, have rows of columns_of(T). Scores of keys that a query does not see are -infinity.

// Elements [from, to).
struct range {
    size_t from, to;
};

// Attention takes blocks of queries, and tiles of keys, to both of which a sequence is cut: what a block computes with a tile stays in the
// caches. A tile has whole blocks of rows, so that the queries of a tile see the first key of it or none.
enum { ROW_BLOCK = 24, KEY_TILE = 384 };

// equal_rows is how many rows each part but the last has where t are cut into at most so many, of whole blocks.
static inline size_t equal_rows(size_t t, size_t parts) { return (t + parts * ROW_BLOCK - 1) / (parts * ROW_BLOCK) * ROW_BLOCK; }

static inline size_t key_rows(size_t t) { return equal_rows(t, (t + KEY_TILE - 1) / KEY_TILE); }

static inline size_t key_tiles(size_t t) { return (t + key_rows(t) - 1) / key_rows(t); }

// rows_at are the rows of the part with this index.
static inline struct range rows_at(size_t index, size_t rows, size_t end) {
    return (struct range){index * rows, (index + 1) * rows < end ? (index + 1) * rows : end};
}

// The query heads of one sample that share a head of keys: `heads` of q, dq, out and dout, S elements after each other, and
// one of k, v, dk and dv. Each head is (T,S), in rows `q_stride` (q, dq), `kv_stride` (k, v, dk, dv) or `out_stride` elements
// apart.
struct heads {
    const void *q, *k, *v;
    void *dq, *dk, *dv;
    void *out;
    const void *dout;
    float *lse;           // (heads,T), or NULL when no backward follows
    const int32_t *mask;  // (T), or NULL: keys where it is 0 are not seen
    size_t heads, t, s, q_stride, kv_stride, out_stride;
    size_t window;  // keys that a query sees at most; 0: all before it
    int bf16;       // what all are but lse and mask; else float
    int paired;     // bf16 is multiplied in pairs where the kernels have them; else widened first
    int bidirectional;
    struct dropout dropout;  // of probabilities; none when its threshold is 0
    uint64_t first;          // the draw of the first; those of a head are (T,T)
};

INLINE size_t pad(size_t n) { return (n + WIDTH - 1) / WIDTH * WIDTH; }

// block_from is the block of rows that begins at `from`.
INLINE struct range block_from(size_t from, size_t end) {
    return (struct range){from, from + ROW_BLOCK < end ? from + ROW_BLOCK : end};
}

// spread is pad to an odd number of cache lines: rows that far apart fall into all sets of a cache.
INLINE size_t spread(size_t n) { return ((n + 15) / 16 | 1) * 16; }

// columns_of is how long packed rows of a tile's keys are, t being the length of the sequence.
INLINE size_t columns_of(size_t t) { return spread(key_rows(t)); }

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

// pack_columns copies factor * x (T,S), as pack does, to columns of packed (S, width), or x to (S/2, width) of pairs.
INLINE void pack_columns(float *packed, size_t width, const void *x, size_t at, size_t stride, size_t t, size_t s, float factor,
                         enum operands kind) {
    const size_t columns = kind == PAIRED ? (s + 1) / 2 : s;
    for (size_t from = 0; from < t; from += WIDTH) {
        const size_t rows = t - from < WIDTH ? t - from : WIDTH;
        LANES(columns, vec block[WIDTH] = {{0}};
              for (size_t r = 0; r < rows; r++) {
                  const size_t row = at + (from + r) * stride;
                  near(x, row + (kind == PAIRED ? 2 * i : i), stride, kind != FLOATS);
                  block[r] = kind == PAIRED ? get_pairs((const uint16_t *)x + row, i, s)
                                            : fetch(x, row + i, part, kind != FLOATS) * factor;
              }
              transpose(block);
              for (size_t c = 0; c < part; c++) store(packed + (i + c) * width + from, block[c]););
    }
}

// pack_pairs copies x (T,S) of bf16, as pack does, to packed (T/2, P) of pairs: two rows as one.
INLINE void pack_pairs(float *packed, const void *x, size_t at, size_t stride, size_t t, size_t s) {
    for (size_t r = 0; r < t; r += 2, at += 2 * stride, packed += pad(s))
        LANES(s, near(x, at + i, stride, 1); near(x, at + stride + i, stride, 1); vec a = fetch(x, at + i, part, 1);
              vec b = r + 1 < t ? fetch(x, at + stride + i, part, 1) : splat(0);
              store(packed + i, pairs_of(a, b)););
}

// pack_rows packs B of a product whose sums go over the rows of x: (T,P), or (T/2, P) of pairs.
INLINE void pack_rows(float *packed, const void *x, size_t at, size_t stride, size_t t, size_t s, enum operands kind) {
    if (kind == PAIRED)
        pack_pairs(packed, x, at, stride, t, s);
    else
        pack(packed, x, at, stride, t, s, kind != FLOATS);
}

// pack_queries packs A of a product whose sums go over the columns of x: (T,P), with the pairs of a row in its first half.
INLINE void pack_queries(float *packed, const void *x, size_t at, size_t stride, size_t t, size_t s, enum operands kind) {
    if (kind != PAIRED) {
        pack(packed, x, at, stride, t, s, kind != FLOATS);
        return;
    }
    for (size_t r = 0; r < t; r++, at += stride, packed += pad(s))
        for (size_t i = 0; i < (s + 1) / 2; i += WIDTH) {
            near(x, at + 2 * i, stride, 1);
            store(packed + i, get_pairs((const uint16_t *)x + at, i, s));
        }
}

// unpack copies factor * packed (T,P) to x (T,S), from element `at` on in rows `stride` apart.
INLINE void unpack(void *x, const float *packed, size_t at, size_t stride, size_t t, size_t s, float factor, int bf16) {
    size_t p = pad(s);
    for (size_t r = 0; r < t; r++, at += stride, packed += p)
        LANES(s, near(x, at + i, stride, bf16); keep(x, at + i, load(packed + i) * factor, part, bf16););
}

static size_t attention_scratch(size_t t, size_t queries, size_t heads, size_t s) {
    const size_t p = pad(s), width = columns_of(t);
    return key_rows(t) * p + (s + ROW_BLOCK + 1) * width + ROW_BLOCK * p + heads * queries * (p + 2);
}

static size_t attention_backward_scratch(size_t t, size_t s) {
    const size_t p = pad(s), width = columns_of(t);
    return key_rows(t) * p + (2 * s + 3 * ROW_BLOCK + 1) * width + 3 * ROW_BLOCK * p;
}

static size_t attention_sums(size_t t, size_t heads, size_t s) { return (heads + 2) * t * pad(s); }

// hidden writes what is added to the scores of keys: -infinity where the mask hides one. It returns NULL without a mask.
INLINE const float *hidden(float *bias, const struct heads *h, struct range keys) {
    if (!h->mask) return NULL;
    for (size_t i = keys.from; i < keys.to; i++) bias[i - keys.from] = h->mask[i] ? 0 : -INFINITY;
    return bias;
}

INLINE enum operands operands_of(const struct heads *h) { return !h->bf16 ? FLOATS : HAS_PAIRS && h->paired ? PAIRED : WIDENED; }

// score_scale is what products of queries and keys are multiplied by: keys when they are packed, or scores where the keys stay as they are.
INLINE float score_scale(const struct heads *h) { return (float)(1 / sqrt((double)h->s)); }

// exponential is exp(score - shift).
INLINE vec exponential(vec score, float scale, float shift, enum operands kind) {
    return vexp(kind == PAIRED ? fused(score, splat(scale), splat(-shift)) : score - shift);
}

// first_seen is the first key that a query sees.
INLINE size_t first_seen(const struct heads *h, size_t query) {
    return h->window && query >= h->window ? query + 1 - h->window : 0;
}

// seen_of are the keys of a tile that a block of queries sees; it may be empty. Its first lies at a whole vector.
INLINE struct range seen_of(const struct heads *h, struct range tile, struct range block) {
    const size_t first = first_seen(h, block.from) / WIDTH * WIDTH, end = h->bidirectional ? h->t : block.to;
    return (struct range){first > tile.from ? first : tile.from, end < tile.to ? end : tile.to};
}

// hide sets what a row holds of keys that the query does not see to `value`, up to a whole vector.
INLINE void hide(float *row, const struct heads *h, struct range keys, size_t query, float value) {
    const size_t first = first_seen(h, query), end = h->bidirectional || keys.to <= query ? keys.to : query + 1;
    const int from = first > keys.from ? (int)(first - keys.from) : 0, to = (int)(end - keys.from);
    for (int i = 0; i < from; i += WIDTH) store(row + i, choose(lanes + i >= from, load(row + i), splat(value)));
    for (int i = to / WIDTH * WIDTH; i < (int)(keys.to - keys.from); i += WIDTH)
        store(row + i, choose(lanes + i < to, load(row + i), splat(value)));
}

// mask adds the bias, if any, to the scores of n keys.
INLINE void mask(float *scores, const float *bias, size_t n) {
    if (bias) LANES(n, put(scores + i, get(scores + i, part) + get(bias + i, part), part););
}

// softmax_row adds n scores of a row to its softmax (Milakov and Gimelshein 2018, algorithm 3): they become exponentials over
// *top, the largest score so far, and *sum their sum. It returns the factor that brings earlier ones to that scale.
INLINE float softmax_row(const struct heads *h, float *row, size_t n, float *top, float *sum, enum operands kind) {
    const float before = *top, scale = score_scale(h), largest = largest_of(row, n) * (kind == PAIRED ? scale : 1);
    if (!(largest <= before)) *top = largest;
    if (*top == -INFINITY) {
        memset(row, 0, n * sizeof *row);
        return 1;
    }
    const float shift = *top, factor = shift == before ? 1 : expf(before - shift);
    vec total_of_tile = {0};
    LANES(n, vec e = exponential(get(row + i, part), scale, shift, kind); put(row + i, e, part); total_of_tile += e;);
    *sum = *sum * factor + total(total_of_tile);
    return factor;
}

// drop drops elements that a row of probabilities, or of their gradients, holds of keys.
INLINE void drop(float *row, const struct heads *h, struct range keys, size_t head, size_t query) {
    const size_t n = keys.to - keys.from;
    if (h->dropout.threshold) dropped(row, row, n, 1, n, h->first + (head * h->t + query) * h->t + keys.from, h->dropout, 0);
}

// narrow rounds n floats of a row to bf16, in place.
INLINE void narrow(float *row, size_t n) {
    for (size_t i = 0; i < n; i += 2 * WIDTH) store(row + i / 2, round_pairs(load(row + i), load(row + i + WIDTH)));
}

// What one call of the forward works on: a tile of keys, packed, and one block of queries at a time.
struct forward {
    struct range tile;
    float *v, *k, *scores, *q;
    const float *bias;
};

// forward_block takes a tile into account for a block of queries. out, top and sum are its sums.
INLINE void forward_block(const struct heads *h, const struct forward *f, size_t head, struct range block, float *out, float *top,
                          float *sum, enum operands kind) {
    const size_t s = h->s, p = pad(s), width = columns_of(h->t), rows = block.to - block.from;
    const struct range keys = seen_of(h, f->tile, block);
    if (keys.from >= keys.to) return;
    const size_t n = pad(keys.to - keys.from), low = keys.from - f->tile.from;
    const int first = keys.from == seen_of(h, (struct range){0, h->t}, block).from;
    pack_queries(f->q, h->q, block.from * h->q_stride + head * s, h->q_stride, rows, s, kind);
    multiply(&(struct product){rows, n, count_of(s, kind), f->q, p, 1, f->k + low, width, f->scores, width, 0}, kind);
    for (size_t r = 0; r < rows; r++) {
        float *row = f->scores + r * width;
        if (first) top[r] = -INFINITY, sum[r] = 0;
        hide(row, h, keys, block.from + r, -INFINITY);
        mask(row, f->bias ? f->bias + low : NULL, keys.to - keys.from);
        const float factor = softmax_row(h, row, n, top + r, sum + r, kind);
        if (!first && factor != 1) scaled(out + r * p, out + r * p, factor, p);
        drop(row, h, keys, head, block.from + r);
        if (kind == PAIRED) narrow(row, n);
    }
    multiply(&(struct product){rows, p, count_of(keys.to - keys.from, kind), f->scores, width, 1, f->v + count_of(low, kind) * p, p,
                               out, p, !first}, kind);
}

INLINE void attention_of(const struct heads *h, struct range queries, float *scratch, enum operands kind) {
    const size_t t = h->t, s = h->s, p = pad(s), width = columns_of(t), rows = queries.to - queries.from;
    struct forward f = {.v = scratch};
    f.k = f.v + key_rows(t) * p;
    f.scores = f.k + s * width;
    f.q = f.scores + ROW_BLOCK * width;
    float *bias = f.q + ROW_BLOCK * p, *out = bias + width, *top = out + h->heads * rows * p, *sum = top + h->heads * rows;
    const struct range seen = seen_of(h, (struct range){0, t}, queries);
    for (size_t tile = seen.from / key_rows(t); tile * key_rows(t) < seen.to; tile++) {
        f.tile = rows_at(tile, key_rows(t), seen.to);
        f.bias = hidden(bias, h, f.tile);
        const size_t keys = f.tile.to - f.tile.from;
        pack_rows(f.v, h->v, f.tile.from * h->kv_stride, h->kv_stride, keys, s, kind);
        pack_columns(f.k, width, h->k, f.tile.from * h->kv_stride, h->kv_stride, keys, s, score_scale(h), kind);
        for (size_t head = 0; head < h->heads; head++)
            for (size_t row = 0; row < rows; row += ROW_BLOCK) {
                const size_t at = head * rows + row, from = queries.from + row;
                forward_block(h, &f, head, block_from(from, queries.to), out + at * p, top + at, sum + at, kind);
            }
    }
    for (size_t head = 0; head < h->heads; head++)
        for (size_t r = 0; r < rows; r++) {
            const size_t at = head * rows + r, row = queries.from + r;
            const int any = sum[at] != 0;  // a query that sees no key has none
            unpack(h->out, out + at * p, row * h->out_stride + head * s, h->out_stride, 1, s, any ? 1 / sum[at] : 0, kind != FLOATS);
            if (h->lse) h->lse[head * t + row] = any ? top[at] + logf(sum[at]) : INFINITY;
        }
}

// BY_OPERANDS makes a call with how the operands lie as its last argument, a constant: each has code of its own.
#define BY_OPERANDS(call, ...)                              \
    switch (operands_of(h)) {                               \
        case FLOATS: call(__VA_ARGS__, FLOATS); break;      \
        case WIDENED: call(__VA_ARGS__, WIDENED); break;    \
        case PAIRED: call(__VA_ARGS__, PAIRED); break;      \
    }

static void attention_part(const struct heads *h, struct range queries, float *scratch) {
    BY_OPERANDS(attention_of, h, queries, scratch)
}

// dscores turns scores into probabilities P = exp(score - lse) and, beside them, dprobabilities into
// dS = P (dP - D) with D = dout . out.
INLINE void dscores(const struct heads *h, float *scores, float *dprobabilities, size_t n, float lse, float d, enum operands kind) {
    const float scale = score_scale(h);
    LANES(n, vec p = exponential(get(scores + i, part), scale, lse, kind); put(scores + i, p, part);
          put(dprobabilities + i, p * (get(dprobabilities + i, part) - d), part););
}

// inner is the inner product of the elements of x and y from `at` on, in rows `stride` apart.
INLINE float inner(const void *x, const void *y, size_t at, size_t stride, size_t n, int bf16) {
    vec sum = {0};
    LANES(n, near(y, at + i, stride, bf16); sum = fused(fetch(x, at + i, part, bf16), fetch(y, at + i, part, bf16), sum););
    return total(sum);
}

// What one call of the backward works on: a tile of keys, packed, and one block of queries at a time. Pairs are packed along what is summed
// over: q and dout along S, q_pairs, dout_pairs, scores and ds along queries, ds_rows along keys.
struct backward {
    struct range tile;
    float *k, *kt, *vt, *scores, *ds, *ds_rows, *q, *dout, *q_pairs, *dout_pairs;
    const float *bias;
};

// pair_rows rounds n elements of two rows, the second NULL where there is none, to bf16. The first row becomes pairs of both; the rows
// themselves go to `rows`, unless that is NULL.
INLINE void pair_rows(float *first, const float *second, size_t n, float *rows, size_t width) {
    for (size_t i = 0; i < n; i += WIDTH) {
        const vec both = round_pairs(load(first + i), second ? load(second + i) : splat(0));
        if (rows) {
            store_half(rows + i / 2, both, 0);
            store_half(rows + width + i / 2, both, 1);
        }
        store(first + i, interleave(both));
    }
}

// backward_block adds what a block of queries has to do with a tile to dq, that of the block's first row, and to dk and dv, those
// of the tile's first key. The equations are those of Dao et al. 2022, appendix B.2; with dropout, algorithm 4.
INLINE void backward_block(const struct heads *h, const struct backward *b, size_t head, struct range block, float *dq, float *dk,
                           float *dv, enum operands kind) {
    const size_t s = h->s, p = pad(s), width = columns_of(h->t), rows = block.to - block.from;
    const struct range keys = seen_of(h, b->tile, block);
    if (keys.from >= keys.to) return;
    const size_t n = pad(keys.to - keys.from), low = keys.from - b->tile.from, count = keys.to - keys.from;
    const size_t at = block.from * h->q_stride + head * s, out = block.from * h->out_stride + head * s;
    pack_queries(b->q, h->q, at, h->q_stride, rows, s, kind);
    pack_queries(b->dout, h->dout, out, h->out_stride, rows, s, kind);
    multiply(&(struct product){rows, n, count_of(s, kind), b->q, p, 1, b->kt + low, width, b->scores, width, 0}, kind);
    multiply(&(struct product){rows, n, count_of(s, kind), b->dout, p, 1, b->vt + low, width, b->ds, width, 0}, kind);
    for (size_t r = 0; r < rows; r++) {
        const size_t query = block.from + r;
        float *row = b->scores + r * width, *drow = b->ds + r * width;
        const float d = inner(h->dout, h->out, out + r * h->out_stride, h->out_stride, s, kind != FLOATS);
        hide(row, h, keys, query, -INFINITY);
        hide(drow, h, keys, query, 0);
        mask(row, b->bias ? b->bias + low : NULL, count);
        drop(drow, h, keys, head, query);
        dscores(h, row, drow, n, h->lse[head * h->t + query], d, kind);
        drop(row, h, keys, head, query);
    }
    size_t step = width;
    const float *q = b->q, *dout = b->dout, *ds = b->ds;
    if (kind == PAIRED) {
        for (size_t r = 0; r < rows; r += 2) {
            const float *second = r + 1 < rows ? b->scores + (r + 1) * width : NULL, *dsecond = second ? b->ds + (r + 1) * width : NULL;
            pair_rows(b->scores + r * width, second, n, NULL, 0);
            pair_rows(b->ds + r * width, dsecond, n, b->ds_rows + r * width, width);
        }
        pack_pairs(b->q_pairs, h->q, at, h->q_stride, rows, s);
        pack_pairs(b->dout_pairs, h->dout, out, h->out_stride, rows, s);
        step = 2 * width, q = b->q_pairs, dout = b->dout_pairs, ds = b->ds_rows;
    }
    const size_t queries = count_of(rows, kind);
    multiply(&(struct product){rows, p, count_of(count, kind), ds, width, 1, b->k + count_of(low, kind) * p, p, dq, p, 1}, kind);
    multiply(&(struct product){count, p, queries, b->ds, 1, step, q, p, dk + low * p, p, 1}, kind);
    multiply(&(struct product){count, p, queries, b->scores, 1, step, dout, p, dv + low * p, p, 1}, kind);
}

INLINE void attention_backward_of(const struct heads *h, size_t key_tile, struct range query_tiles, float *sums, float *scratch,
                                  enum operands kind) {
    const size_t t = h->t, s = h->s, p = pad(s), width = columns_of(t);
    struct backward b = {.tile = rows_at(key_tile, key_rows(t), t), .k = scratch};
    const size_t keys = b.tile.to - b.tile.from, at = b.tile.from * h->kv_stride;
    if (first_seen(h, query_tiles.from * key_rows(t)) >= b.tile.to) return;
    b.kt = b.k + key_rows(t) * p;
    b.vt = b.kt + s * width;
    b.scores = b.vt + s * width;
    b.ds = b.scores + ROW_BLOCK * width;
    b.ds_rows = b.ds + ROW_BLOCK * width;
    b.q = b.ds_rows + ROW_BLOCK * width;
    b.dout = b.q + ROW_BLOCK * p;
    b.q_pairs = b.dout + ROW_BLOCK * p;
    b.dout_pairs = b.q_pairs + ROW_BLOCK / 2 * p;
    b.bias = hidden(b.dout_pairs + ROW_BLOCK / 2 * p, h, b.tile);
    float *dk = sums + (h->heads * t + b.tile.from) * p, *dv = dk + t * p;
    pack_rows(b.k, h->k, at, h->kv_stride, keys, s, kind);
    pack_columns(b.kt, width, h->k, at, h->kv_stride, keys, s, score_scale(h), kind);
    pack_columns(b.vt, width, h->v, at, h->kv_stride, keys, s, 1, kind);
    for (size_t tile = query_tiles.from; tile < query_tiles.to; tile++) {
        const struct range queries = rows_at(tile, key_rows(t), t);
        for (size_t head = 0; head < h->heads; head++)
            for (size_t from = queries.from; from < queries.to; from += ROW_BLOCK)
                backward_block(h, &b, head, block_from(from, queries.to), sums + (head * t + from) * p, dk, dv, kind);
    }
}

static void backward_part(const struct heads *h, size_t key_tile, struct range query_tiles, float *sums, float *scratch) {
    BY_OPERANDS(attention_backward_of, h, key_tile, query_tiles, sums, scratch)
}

static void attention_gradients(const struct heads *h, struct range rows, const float *sums) {
    const size_t t = h->t, s = h->s, p = pad(s), n = rows.to - rows.from, key = rows.from * h->kv_stride;
    const float factor = score_scale(h), *dk = sums + (h->heads * t + rows.from) * p;
    TYPED(bf16, h->bf16,
          for (size_t head = 0; head < h->heads; head++)
              unpack(h->dq, sums + (head * t + rows.from) * p, rows.from * h->q_stride + head * s, h->q_stride, n, s, factor, bf16);
          unpack(h->dk, dk, key, h->kv_stride, n, s, factor, bf16);
          unpack(h->dv, dk + t * p, key, h->kv_stride, n, s, 1, bf16););
}

static size_t whole_lines(size_t floats) { return (floats + LINE - 1) / LINE * LINE; }

// group_at is the group of query heads with this index, counted over all samples.
static struct heads group_at(const struct avg_device *d, const struct attention *x, size_t index) {
    const size_t b = index / x->kv, kv = index % x->kv, heads = x->h / x->kv, size = x->bf16 ? 2 : sizeof(float);
    const size_t q = (b * x->t * x->q_stride + kv * heads * x->s) * size;
    const size_t k = (b * x->t * x->kv_stride + kv * x->s) * size;
    const size_t out = (b * x->t * x->h * x->s + kv * heads * x->s) * size;
    return (struct heads){
        .q = x->q + q, .k = x->k + k, .v = x->v + k,
        .dq = x->dq ? x->dq + q : NULL, .dk = x->dk ? x->dk + k : NULL, .dv = x->dv ? x->dv + k : NULL,
        .out = x->out + out, .dout = x->dout ? x->dout + out : NULL,
        .lse = x->lse ? x->lse + (b * x->h + kv * heads) * x->t : NULL, .mask = x->mask ? x->mask + b * x->t : NULL,
        .heads = heads, .t = x->t, .s = x->s, .q_stride = x->q_stride, .kv_stride = x->kv_stride,
        .out_stride = x->h * x->s, .window = x->window, .bf16 = x->bf16, .paired = d->bf16_pairs, .bidirectional = x->bidirectional,
        .dropout = x->dropout, .first = x->first + (b * x->h + kv * heads) * x->t * x->t,
    };
}

// query_rows is how many queries of each head of a group are a thread's work at a time: so many that packing the keys for them does not
// count and so few that their sums stay in the cache; fewer where threads would have nothing to do.
static size_t query_rows(const struct attention *x, size_t threads) {
    enum { FEW = 96, MANY = 960 };
    const size_t groups = x->b * x->kv, heads = x->h / x->kv, most = (x->t * heads + FEW - 1) / FEW;
    const size_t busy = threads == 1 ? 1 : (4 * threads + groups - 1) / groups, parts = (x->t * heads + MANY - 1) / MANY;
    return equal_rows(x->t, parts > busy ? parts : busy < most ? busy : most);
}

static int attention(struct avg_device *d, struct attention x) {
    const size_t heads = x.h / x.kv, groups = x.b * x.kv, rows = query_rows(&x, (size_t)d->threads), parts = (x.t + rows - 1) / rows;
    const size_t floats = whole_lines(attention_scratch(x.t, rows, heads, x.s));
    float *scratch = avg_reserve(d, floats * (size_t)d->threads * sizeof *scratch);
    if (!scratch) return -1;
#pragma omp parallel for num_threads(d->threads) schedule(dynamic) if (groups * parts > 1)
    for (size_t i = 0; i < groups * parts; i++) {
        const struct heads group = group_at(d, &x, i % groups);
        const struct range queries = rows_at(parts - 1 - i / groups, rows, x.t);  // the last first: they see the most keys
        attention_part(&group, queries, scratch + (size_t)omp_get_thread_num() * floats);
    }
    return 0;
}

// backward_alone runs the backward of a group on the calling thread: see backward_together.
static void backward_alone(const struct heads *h, float *sums, float *scratch) {
    const size_t tiles = key_tiles(h->t);
    memset(sums, 0, attention_sums(h->t, h->heads, h->s) * sizeof *sums);
    for (size_t key = tiles; key-- > 0;) backward_part(h, key, (struct range){key, tiles}, sums, scratch);
    for (size_t key = tiles; key-- > 0 && h->bidirectional;) backward_part(h, key, (struct range){0, key}, sums, scratch);
    attention_gradients(h, (struct range){0, h->t}, sums);
}

// backward_together runs it on all threads, in waves: wave w has the queries of tile (key + w) % tiles meet each tile of keys. So a
// wave's pairs share no sum, and each sum gets its terms in one order, which is also that of backward_alone.
static void backward_together(struct avg_device *d, const struct heads *h, float *sums, float *scratch, size_t floats) {
    const size_t tiles = key_tiles(h->t);
    memset(sums, 0, attention_sums(h->t, h->heads, h->s) * sizeof *sums);
#pragma omp parallel num_threads(d->threads)
    {
        float *own = scratch + (size_t)omp_get_thread_num() * floats;
        for (size_t wave = 0; wave < tiles; wave++)
#pragma omp for schedule(dynamic)
            for (size_t key = 0; key < (h->bidirectional ? tiles : tiles - wave); key++) {
                const size_t query = (key + wave) % tiles;
                backward_part(h, key, (struct range){query, query + 1}, sums, own);
            }
#pragma omp for
        for (size_t tile = 0; tile < tiles; tile++) attention_gradients(h, rows_at(tile, key_rows(h->t), h->t), sums);
    }
}

// As many groups as threads run at once, each on one; groups that are left over run one by one on all.
static int attention_backward(struct avg_device *d, struct attention x) {
    const size_t heads = x.h / x.kv, groups = x.b * x.kv, threads = (size_t)d->threads;
    const size_t floats = whole_lines(attention_backward_scratch(x.t, x.s));
    const size_t sums = whole_lines(attention_sums(x.t, heads, x.s));
    const size_t alone = key_tiles(x.t) == 1 ? groups : groups - groups % threads;
    float *scratch = avg_reserve(d, (sums + floats) * threads * sizeof *scratch);
    if (!scratch) return -1;
#pragma omp parallel for num_threads(d->threads) schedule(static) if (threads > 1 && alone > 1)
    for (size_t i = 0; i < alone; i++) {
        const struct heads group = group_at(d, &x, i);
        float *own = scratch + (size_t)omp_get_thread_num() * (sums + floats);
        backward_alone(&group, own, own + sums);
    }
    for (size_t i = alone; i < groups; i++) {
        const struct heads group = group_at(d, &x, i);
        backward_together(d, &group, scratch, scratch + sums, floats);
    }
    return 0;
}
