// Small products, of operands in the caches: a register tile at a time. Included by kernels_body.h.

enum { TILE_ROWS = 6 };

// How the operands of products lie in memory and are packed: FLOATS as they are, WIDENED bf16 as floats and PAIRED bf16 as pairs, for
// the processor's bf16 units.
enum operands { FLOATS, WIDENED, PAIRED };

// count_of is how many elements of operands hold n values that are summed over.
INLINE size_t count_of(size_t n, enum operands kind) { return kind == PAIRED ? (n + 1) / 2 : n; }

// pairs_of makes pairs of the elements of a and b, which are widened bf16.
INLINE vec pairs_of(vec a, vec b) { return (vec)(((ivec)a >> 16 & 0xffff) | (ivec)b); }

// tile sets (or adds to) c (rows, vectors * WIDTH) the product of a (rows, k), whose element (r, i) lies at
// r * row_step + i * step, and b (k, vectors * WIDTH). rows, vectors, pairs and far are constants where it is inlined. Where C is far, in
// memory, the last of its vectors has `part` elements, and the rows that come next are asked for.
INLINE void tile(int rows, int vectors, size_t k, const float *a, size_t row_step, size_t step, const float *b, size_t ldb,
                 float *c, size_t ldc, int accumulate, int pairs, int far, size_t part) {
    vec sums[TILE_ROWS][TILE_VECTORS];
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++) {
            sums[r][v] = accumulate ? get(c + r * ldc + v * WIDTH, far && v + 1 == vectors ? part : WIDTH) : splat(0);
            if (far) __builtin_prefetch(c + (r + TILE_ROWS) * ldc + v * WIDTH, 1);
        }
    for (size_t i = 0; i < k; i++, a += step, b += ldb) {
        vec bs[TILE_VECTORS];
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++) bs[v] = load(b + v * WIDTH);
#pragma GCC unroll 6
        for (int r = 0; r < rows; r++) {
            vec x = pairs ? same_pair(a + r * row_step) : splat(a[r * row_step]);
#pragma GCC unroll 4
            for (int v = 0; v < vectors; v++) sums[r][v] = pairs ? fused_pairs(x, bs[v], sums[r][v]) : fused(x, bs[v], sums[r][v]);
        }
    }
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++) put(c + r * ldc + v * WIDTH, sums[r][v], far && v + 1 == vectors ? part : WIDTH);
}

// Operands of a product C (m,n) = [C +] A (m,k) B (k,n), n a multiple of WIDTH. The elements of A and B may be pairs of bf16, each the
// values of two neighbours of the k that are summed over.
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
INLINE void strip(const struct product *p, size_t n0, int vectors, int pairs, int far, size_t part) {
#define TILE(rows)                                                                                                     \
    tile(rows, vectors, p->k, p->a + m * p->row_step, p->row_step, p->step, p->b + n0, p->ldb, p->c + m * p->ldc + n0, \
         p->ldc, p->accumulate, pairs, far, n0 + vectors * WIDTH < p->n ? WIDTH : part)
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

INLINE void multiply_of(const struct product *p, int pairs, int far, size_t part) {
    size_t n = 0;
    for (; n + TILE_VECTORS * WIDTH <= p->n; n += TILE_VECTORS * WIDTH) strip(p, n, TILE_VECTORS, pairs, far, part);
    switch ((p->n - n) / WIDTH) {
        case 1: strip(p, n, 1, pairs, far, part); break;
#if TILE_VECTORS == 4
        case 2: strip(p, n, 2, pairs, far, part); break;
        case 3: strip(p, n, 3, pairs, far, part); break;
#endif
    }
}

static void multiply_floats(const struct product *p) { multiply_of(p, 0, 0, WIDTH); }
static void multiply_pairs(const struct product *p) { multiply_of(p, 1, 0, WIDTH); }

INLINE void multiply(const struct product *p, enum operands kind) {
    if (kind == PAIRED)
        multiply_pairs(p);
    else
        multiply_floats(p);
}
