// Products C (m,n) = [C +] A (m,k) B [+ bias]. oneDNN packs B first and waits for what it reads; here a block of B is packed while the one
// before is multiplied by the rows of A, and what is packed next is asked for. Included by kernels_body.h, behind product_body.h; for
// processors that multiply pairs of bf16 fast.

// Rows of a packed block, of floats or of pairs of bf16, and of A: where many rows of A share a block, it is in the second-level cache
// together with the next one and the sums of a strip; else it is small enough for the first-level cache.
enum { DEPTH = 128, MOST_DEPTH = 512, MANY_ROWS = 512, MOST_ROWS_OF_STRIP = 172 * TILE_ROWS };

INLINE size_t lesser(size_t a, size_t b) { return a < b ? a : b; }

// A block of B has elements (row, column) to (row + depth, column + columns), all in one strip. Behind the last one depth is 0.
struct strip_block {
    size_t row, column, depth, columns;
};

INLINE struct strip_block strip_block(const struct few_rows *p, size_t row, size_t column, size_t end, size_t most) {
    if (row >= p->k) row = 0, column += STRIP_WIDTH;
    if (column >= end) return (struct strip_block){.column = column};
    return (struct strip_block){row, column, lesser(p->k - row, most), lesser(p->n - column, STRIP_WIDTH)};
}

// pack_block packs rows [from, to) of a block, as far as it has them, and asks for as many that follow.
INLINE void pack_block(float *packed, const struct few_rows *p, struct strip_block b, size_t from, size_t to, int bf16) {
    const size_t ahead = ((to - from) << bf16) * p->n, end = lesser(to, b.depth >> bf16);
    for (size_t r = from; r < end; r++) {
        const size_t at = (b.row + (r << bf16)) * p->n + b.column;
        LANES(b.columns, vec v = fetch(p->b.data, at + i, part, bf16); __builtin_prefetch(element(p->b, at + ahead + i)); if (bf16) {
            v = pairs_of(v, fetch(p->b.data, at + p->n + i, part, 1));
            __builtin_prefetch(element(p->b, at + ahead + p->n + i));
        } store(packed + r * STRIP_WIDTH + i, v););
    }
}

// finish sets the columns of a strip of C from their sums over k.
INLINE void finish(const struct few_rows *p, const float *sums, size_t column, size_t columns, int bf16) {
    for (size_t r = 0; r < p->m; r++, sums += STRIP_WIDTH)
        LANES(columns, const size_t at = r * p->n + column + i; vec v = load(sums + i); if (p->bias) v += get(p->bias + column + i, part);
              if (p->accumulate) v += fetch(p->c.data, at, part, bf16); keep(p->c.data, at, v, part, bf16););
}

// strips_of computes whole strips of C, by blocks of at most `depth` packed rows. scratch has two blocks, one being multiplied and one being
// packed, and the sums of a strip.
INLINE void strips_of(const struct few_rows *p, size_t depth, struct part columns, float *scratch, int bf16) {
    const size_t end = columns.from + columns.n, tiles = (p->m + TILE_ROWS - 1) / TILE_ROWS, step = (depth + tiles - 1) / tiles;
    float *packed = scratch, *spare = packed + depth * STRIP_WIDTH, *sums = spare + depth * STRIP_WIDTH;
    struct strip_block b = strip_block(p, 0, columns.from, end, depth << bf16);
    pack_block(packed, p, b, 0, depth, bf16);
    while (b.depth) {
        const struct strip_block next = strip_block(p, b.row + b.depth, b.column, end, depth << bf16);
        for (size_t tile = 0, m = 0; tile < tiles; tile++, m += TILE_ROWS) {
            pack_block(spare, p, next, tile * step, (tile + 1) * step, bf16);
            multiply_of(&(struct product){.m = lesser(p->m - m, TILE_ROWS), .n = (b.columns + WIDTH - 1) / WIDTH * WIDTH, .k = b.depth >> bf16,
                                          .a = element(p->a, m * p->k + b.row), .row_step = p->k >> bf16, .step = 1, .b = packed,
                                          .ldb = STRIP_WIDTH, .c = sums + m * STRIP_WIDTH, .ldc = STRIP_WIDTH, .accumulate = b.row > 0},
                        bf16, 0, WIDTH);
        }
        if (next.column != b.column) TYPED(narrow, p->c.bf16, finish(p, sums, b.column, b.columns, narrow));
        float *full = spare;
        spare = packed, packed = full, b = next;
    }
}

// strips cuts a product over the threads: into strips and, where those are fewer than threads, rows. bf16 asks for an even k.
static int strips(struct avg_device *d, struct few_rows p) {
    const size_t depth = p.m > MANY_ROWS ? MOST_DEPTH : DEPTH, most = lesser(p.m, MOST_ROWS_OF_STRIP), floats = (2 * depth + most) * STRIP_WIDTH;
    const size_t strips = (p.n + STRIP_WIDTH - 1) / STRIP_WIDTH;
    const int wide = (int)lesser(strips, (size_t)d->threads), high = d->threads / wide;
    float *scratch = avg_reserve(d, floats * (size_t)d->threads * sizeof *scratch);
    if (!scratch) return -1;
#pragma omp parallel for num_threads(d->threads) schedule(static)
    for (int i = 0; i < wide * high; i++) {
        const struct part rows = part_of(p.m, TILE_ROWS, i / wide, high), columns = part_of(p.n, STRIP_WIDTH, i % wide, wide);
        for (size_t m = rows.from, end = m + rows.n; m < end; m += most) {
            struct few_rows own = p;
            own.m = lesser(end - m, most), own.a.data = element(p.a, m * p.k), own.c.data = element(p.c, m * p.n);
            TYPED(bf16, p.b.bf16, strips_of(&own, depth, columns, scratch + (size_t)i * floats, bf16));
        }
    }
    return 0;
}
