// Gradients of weights, C (m,n) = [C +] A^T B with A (k,m) and B (k,n), where k, the rows of a micro-batch, is small. Most of what moves
// then is C, which is in memory: a tile of it is asked for while the one before is computed, which oneDNN does not do. Included by
// kernels_body.h, behind product_body.h; for processors that multiply pairs of bf16 fast.
//
// A panel of A and a strip of B are packed: for floats element (i, column) lies at i * columns + column; of bf16, pairs of rows lie
// together.

enum { STRIP_WIDTH = TILE_VECTORS * WIDTH };

// pack_panel copies `columns` columns of x (k, stride), from column `from` on, to packed, rows `width` apart; the rest up to width is 0.
INLINE void pack_panel(float *packed, const void *x, size_t k, size_t stride, size_t from, size_t columns, size_t width, int bf16) {
    for (size_t c = 0; c < width; c += WIDTH) {
        const size_t part = columns < c ? 0 : columns - c < WIDTH ? columns - c : WIDTH, room = width - c < WIDTH ? width - c : WIDTH;
        for (size_t row = 0, at = from + c; row < k; row += 1 + bf16, at += (1 + bf16) * stride, packed += width) {
            vec v = fetch(x, at, part, bf16);
            if (bf16) v = pairs_of(v, row + 1 < k ? fetch(x, at + stride, part, 1) : splat(0));
            put(packed + c, v, room);
        }
        packed -= count_of(k, bf16 ? PAIRED : FLOATS) * width;
    }
}

// gradient_strip computes rows [from, to) of a strip of C that begins at a column, from the packed panels a of A and b, where B is packed to.
INLINE void gradient_strip(const struct gradient *g, size_t from, size_t to, size_t column, const float *a, float *b, int bf16) {
    const size_t rows = count_of(g->k, bf16 ? PAIRED : FLOATS), columns = g->n - column < STRIP_WIDTH ? g->n - column : STRIP_WIDTH;
    pack_panel(b, g->b, g->k, g->n, column, columns, STRIP_WIDTH, bf16);
    for (size_t m = from; m < to; m += TILE_ROWS, a += TILE_ROWS * rows)
        multiply_of(&(struct product){.m = to - m < TILE_ROWS ? to - m : TILE_ROWS, .n = (columns + WIDTH - 1) / WIDTH * WIDTH, .k = rows, .a = a,
                                      .row_step = 1, .step = TILE_ROWS, .b = b, .ldb = STRIP_WIDTH, .c = g->c + m * g->n + column, .ldc = g->n,
                                      .accumulate = g->accumulate}, bf16, 1, (columns - 1) % WIDTH + 1);
}

// block_rows is how many rows of C share the packed panels of A, which are to stay in the second-level cache.
static size_t block_rows(size_t rows) {
    const size_t cached = (size_t)384 << 10, panels = cached / (TILE_ROWS * rows * sizeof(float));
    return TILE_ROWS * (panels ? panels : 1);
}

static int gradient(struct avg_device *d, struct gradient g) {
    const size_t rows = count_of(g.k, g.bf16 ? PAIRED : FLOATS), height = block_rows(rows), strips = (g.n + STRIP_WIDTH - 1) / STRIP_WIDTH;
    float *packed = avg_reserve(d, (height + (size_t)d->threads * STRIP_WIDTH) * rows * sizeof *packed);
    if (!packed) return -1;
    for (size_t from = 0; from < g.m; from += height) {
        const size_t to = g.m - from < height ? g.m : from + height;
#pragma omp parallel num_threads(d->threads)
        {
#pragma omp for schedule(static)
            for (size_t m = from; m < to; m += TILE_ROWS) {
                const size_t columns = to - m < TILE_ROWS ? to - m : TILE_ROWS;
                TYPED(bf16, g.bf16, pack_panel(packed + (m - from) * rows, g.a, g.k, g.m, m, columns, TILE_ROWS, bf16));
            }
            float *own = packed + (height + (size_t)omp_get_thread_num() * STRIP_WIDTH) * rows;
#pragma omp for schedule(static)
            for (size_t s = 0; s < strips; s++) TYPED(bf16, g.bf16, gradient_strip(&g, from, to, s * STRIP_WIDTH, packed, own, bf16));
        }
    }
    return 0;
}
