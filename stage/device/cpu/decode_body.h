// Operations that continue sequences by one position or a few. Included by kernels_body.h, behind product_body.h. With few rows of A memory bounds a product: it walks several
// rows of B at a time, each from end to end, which the processor's prefetching follows.

enum { DEEP = 8, BROAD = 4 };  // rows of B at a time

// deep adds `depth` rows of b, `stride` apart from element `at` on, times what the rows of a have for them. rows and depth are constants
// where it is inlined.
INLINE void deep(float *y, size_t y_stride, const float *a, size_t k, const void *b, size_t at, size_t stride, int rows, int depth,
                 size_t part, int bf16) {
    vec sums[MOST_ROWS];
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++) sums[r] = get(y + r * y_stride, part);
#pragma GCC unroll 8
    for (int j = 0; j < depth; j++) {
        vec w = fetch(b, at + j * stride, part, bf16);
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) sums[r] = fused(splat(a[r * k + j]), w, sums[r]);
    }
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++) put(y + r * y_stride, sums[r], part);
}

INLINE void by_matrix_of(float *y, size_t y_stride, const float *a, const void *b, size_t k, size_t from, size_t n, size_t stride, int rows,
                         int bf16) {
    size_t row = 0;
    for (; row + DEEP <= k; row += DEEP)
        LANES(n, deep(y + i, y_stride, a + row, k, b, row * stride + from + i, stride, rows, DEEP, part, bf16););
    for (; row < k; row++) LANES(n, deep(y + i, y_stride, a + row, k, b, row * stride + from + i, stride, rows, 1, part, bf16););
}

// broad_step multiplies a vector of `count` rows of b, k apart, with those of the rows of a.
INLINE void broad_step(vec sums[MOST_ROWS][BROAD], const float *a, size_t k, const void *b, size_t at, int rows, int count, size_t part,
                       int bf16) {
    vec x[MOST_ROWS];
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++) x[r] = get(a + r * k, part);
#pragma GCC unroll 4
    for (int j = 0; j < count; j++) {
        vec w = fetch(b, at + j * k, part, bf16);
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) sums[r][j] = fused(x[r], w, sums[r][j]);
    }
}

INLINE void broad(float *y, size_t y_stride, const float *a, const void *b, size_t k, size_t at, int rows, int count, int bf16) {
    vec sums[MOST_ROWS][BROAD] = {{{0}}};
    LANES(k, broad_step(sums, a + i, k, b, at + i, rows, count, part, bf16););
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int j = 0; j < count; j++) y[r * y_stride + j] += total(sums[r][j]);
}

INLINE void by_transposed_of(float *y, size_t y_stride, const float *a, const void *b, size_t k, size_t from, size_t n, int rows, int bf16) {
    size_t column = 0;
    for (; column + BROAD <= n; column += BROAD) broad(y + column, y_stride, a, b, k, (from + column) * k, rows, BROAD, bf16);
    for (; column < n; column++) broad(y + column, y_stride, a, b, k, (from + column) * k, rows, 1, bf16);
}

// BY_ROWS runs a product with the number of rows, and the type, as constants.
#define BY_ROWS(product, ...)                               \
    TYPED(narrow, bf16, switch (rows) {                     \
        case 1: product(__VA_ARGS__, 1, narrow); break;     \
        case 2: product(__VA_ARGS__, 2, narrow); break;     \
        case 3: product(__VA_ARGS__, 3, narrow); break;     \
        case 4: product(__VA_ARGS__, 4, narrow); break;     \
    })

// by_matrix adds a (rows,k) b to y (rows,n), y_stride apart, for n columns of b (k,stride) from column `from` on.
static void by_matrix(float *y, size_t y_stride, const float *a, const void *b, size_t rows, size_t k, size_t from, size_t n, size_t stride,
                      int bf16) {
    BY_ROWS(by_matrix_of, y, y_stride, a, b, k, from, n, stride);
}

// by_transposed does the same for n rows of b (n,k) from row `from` on, transposed.
static void by_transposed(float *y, size_t y_stride, const float *a, const void *b, size_t rows, size_t k, size_t from, size_t n, int bf16) {
    BY_ROWS(by_transposed_of, y, y_stride, a, b, k, from, n);
}

// One query head over `seen` cached keys and values, each row of s elements after the one before; keys before `low` are not seen.
struct cached {
    const void *q, *k, *v;
    void *out;
    size_t s, low, seen;
    int bf16;  // what all of them are; else float
};

// weigh sets `vectors` vectors of out to the sum of the rows of v, each times its probability.
INLINE void weigh(const struct cached *c, const float *p, float inverse, size_t column, int vectors, size_t part, int bf16) {
    vec sums[TILE_VECTORS] = {{0}};
    for (size_t j = c->low; j < c->seen; j++)
#pragma GCC unroll 4
        for (int x = 0; x < vectors; x++) sums[x] = fused(splat(p[j]), fetch(c->v, j * c->s + column + x * WIDTH, part, bf16), sums[x]);
#pragma GCC unroll 4
    for (int x = 0; x < vectors; x++) keep(c->out, column + x * WIDTH, sums[x] * inverse, part, bf16);
}

// score is the product of a query, as floats, and the key from element `at` on.
INLINE float score(const struct cached *c, const float *q, size_t at, int bf16) {
    vec sum = {0};
    LANES(c->s, sum = fused(get(q + i, part), stream(c->k, at + i, part, bf16), sum););
    return total(sum);
}

// cached_of has scratch of `seen` and s floats.
INLINE void cached_of(const struct cached *c, float *scratch, int bf16) {
    const float factor = (float)(1 / sqrt((double)c->s));
    const size_t n = c->seen - c->low;
    float *q = scratch, *p = scratch + c->s;
    LANES(c->s, put(q + i, fetch(c->q, i, part, bf16) * factor, part););
    for (size_t j = c->low; j < c->seen; j++) p[j] = score(c, q, j * c->s, bf16);
    const float top = largest_of(p + c->low, n);
    vec sums = {0};
    LANES(n, vec e = only(vexp(get(p + c->low + i, part) - top), part); put(p + c->low + i, e, part); sums += e;);
    const float inverse = 1 / total(sums);
    size_t column = 0;
    for (; column + TILE_VECTORS * WIDTH <= c->s; column += TILE_VECTORS * WIDTH) weigh(c, p, inverse, column, TILE_VECTORS, WIDTH, bf16);
    LANES(c->s - column, weigh(c, p, inverse, column + i, 1, part, bf16););
}

// start fills y (rows,n) with what a product is added to.
static void start(const struct few_rows *p, float *y, size_t from, size_t rows) {
    for (size_t r = 0; r < rows; r++, y += p->n) {
        if (p->accumulate)
            memcpy(y, (const float *)p->c.data + (from + r) * p->n, p->n * sizeof *y);
        else if (p->bias)
            memcpy(y, p->bias, p->n * sizeof *y);
        else
            memset(y, 0, p->n * sizeof *y);
    }
}

// Each row of C is summed up in scratch, so that one that is bf16 is rounded once.
static int few_rows(struct avg_device *d, struct few_rows p) {
    float *a = avg_reserve(d, MOST_ROWS * (p.k + p.n) * sizeof *a), *y = a + MOST_ROWS * p.k;
    if (!a) return -1;
    const size_t bytes = p.n * p.k * (p.b.bf16 ? 2 : 4);
    for (size_t from = 0; from < p.m; from += MOST_ROWS) {
        const size_t rows = p.m - from < MOST_ROWS ? p.m - from : MOST_ROWS;
        converted((struct elements){a, 0}, (struct elements){element(p.a, from * p.k), p.a.bf16}, 0, rows * p.k);
        start(&p, y, from, rows);
        PARTS(p.n, LINE, bytes, if (p.transposed) {
            by_transposed(y + at.from, p.n, a, p.b.data, rows, p.k, at.from, at.n, p.b.bf16);
        } else {
            by_matrix(y + at.from, p.n, a, p.b.data, rows, p.k, at.from, at.n, p.n, p.b.bf16);
        });
        converted((struct elements){element(p.c, from * p.n), p.c.bf16}, (struct elements){y, 0}, 0, rows * p.n);
    }
    return 0;
}

static int cached_attention(struct avg_device *d, struct cached_attention x) {
    const size_t size = x.bf16 ? 2 : 4, heads = x.b * x.h, width = x.h * x.s, keys = x.past + x.t;
    const size_t floats = (x.s + keys + LINE - 1) / LINE * LINE;
    float *scratch = avg_reserve(d, floats * (size_t)d->threads * sizeof *scratch);
    if (!scratch) return -1;
    PARTS(heads, 1, 2 * heads * keys * x.s * size, for (size_t index = at.from; index < at.from + at.n; index++) {
        const size_t b = index / x.h, head = index % x.h, cache = (b * x.kv + head / (x.h / x.kv)) * x.capacity * x.s * size;
        for (size_t row = b * x.t, seen = x.past + 1; seen <= keys; row++, seen++) {
            const struct cached c = {
                .q = x.q + (row * x.q_stride + head * x.s) * size, .k = x.k + cache, .v = x.v + cache,
                .out = x.out + (row * width + head * x.s) * size, .s = x.s, .seen = seen,
                .low = x.window && seen > x.window ? seen - x.window : 0, .bf16 = x.bf16,
            };
            float *own = scratch + (size_t)omp_get_thread_num() * floats;
            TYPED(bf16, x.bf16, cached_of(&c, own, bf16););
        }
    });
    return 0;
}
