// Operations that draw, and those of transformers. Included by kernels_body.h.

typedef uint32_t uvec __attribute__((vector_size(4 * WIDTH)));
typedef uint64_t wvec __attribute__((vector_size(4 * WIDTH)));  // half as many

// philox writes the draws of blocks block, block + 1, ...: 2 WIDTH of them. Each lane of 64 bits is one block; upper halves
// hold what is left over, which VECTOR_MUL32 does not read.
INLINE void philox(uint32_t *draws, uint64_t block, uint64_t key) {
    enum { BLOCKS = WIDTH / 2 };
    wvec lane;
    for (int i = 0; i < BLOCKS; i++) lane[i] = (uint64_t)i;
    const wvec zero = {0}, low = zero + 0xffffffffu;
    const wvec m0 = zero + 0xd2511f53u, m1 = zero + 0xcd9e8d57u;
    wvec c0 = lane + block, c1 = c0 >> 32, c2 = zero, c3 = zero;
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
#pragma GCC unroll 10
    for (int round = 0; round < 10; round++, k0 += 0x9e3779b9u, k1 += 0xbb67ae85u) {
        wvec p0 = VECTOR_MUL32(c0, m0), p1 = VECTOR_MUL32(c2, m1);
        c0 = (p1 >> 32) ^ c1 ^ (zero + k0);
        c1 = p1;
        c2 = (p0 >> 32) ^ c3 ^ (zero + k1);
        c3 = p0;
    }
    const wvec even = (c0 & low) | (c1 << 32), odd = (c2 & low) | (c3 << 32);
    const wvec from = (lane >> 1) + (lane & 1) * BLOCKS;  // even[0], odd[0], even[1], odd[1], ...
    wvec first = __builtin_shuffle(even, odd, from), second = __builtin_shuffle(even, odd, from + BLOCKS / 2);
    memcpy(draws, &first, sizeof first);
    memcpy(draws + WIDTH, &second, sizeof second);
}

enum { DRAWS = 512 };  // at a time: a multiple of 2 WIDTH

// drawn fills draws with those of at most n elements from number `first` on, and returns how many elements they are for.
// Those of element i are at draws[*skip + i].
INLINE size_t drawn(uint32_t draws[DRAWS], size_t n, uint64_t first, uint64_t key, size_t *skip) {
    *skip = first & 3;
    size_t count = n < DRAWS - *skip ? n : DRAWS - *skip;
    for (size_t i = 0; i < *skip + count; i += 2 * WIDTH) philox(draws + i, (first >> 2) + i / 4, key);
    return count;
}

// kept is all ones in the lanes of the elements that stay.
INLINE ivec kept(const uint32_t *draws, uint32_t threshold) {
    uvec v;
    memcpy(&v, draws, sizeof v);
    return (ivec)(v >= (uvec){0} + threshold);
}

// dropped drops elements of `copies` runs of n elements, `stride` apart, that share the draws first, first + 1, ...
INLINE void dropped(void *y, const void *x, size_t n, size_t copies, size_t stride, uint64_t first, struct dropout d, int bf16) {
    uint32_t draws[DRAWS + WIDTH];
    for (size_t done = 0, skip, count; done < n; done += count) {
        count = drawn(draws, n - done, first + done, d.key, &skip);
        for (size_t r = 0; r < copies; r++) {
            size_t at = r * stride + done;
            LANES(count, ivec stays = kept(draws + skip + i, d.threshold);
                  keep(y, at + i, (vec)((ivec)(fetch(x, at + i, part, bf16) * d.scale) & stays), part, bf16););
        }
    }
}

static void dropout(struct avg_device *d, struct elements y, struct elements x, size_t runs, size_t copies, size_t n, uint64_t first,
                    struct dropout o) {
    if (copies == 1) {  // one long run
        n *= runs;
        runs = 1;
    }
    for (size_t run = 0; run < runs; run++)
        PARTS(n, 4 * LINE, 8 * copies * n, const size_t from = run * copies * n + at.from; TYPED(bf16, x.bf16,
              dropped(element(y, from), element(x, from), at.n, copies, n, first + run * n + at.from, o, bf16);););
}

// draw is one number of the sequence of key: see device.Draws.
static uint32_t draw(uint64_t key, uint64_t number) {
    uint32_t c[4] = {(uint32_t)(number >> 2), (uint32_t)(number >> 34), 0, 0};
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    for (int round = 0; round < 10; round++, k0 += 0x9e3779b9u, k1 += 0xbb67ae85u) {
        uint64_t p0 = (uint64_t)0xd2511f53u * c[0], p1 = (uint64_t)0xcd9e8d57u * c[2];
        uint32_t c0 = (uint32_t)(p1 >> 32) ^ c[1] ^ k0, c2 = (uint32_t)(p0 >> 32) ^ c[3] ^ k1;
        c[0] = c0, c[1] = (uint32_t)p1, c[2] = c2, c[3] = (uint32_t)p0;
    }
    return c[number & 3];
}

static void drop_rows(struct avg_device *d, float *y, const float *x, const int32_t *ids, size_t rows, size_t columns, struct dropout o) {
    PARTS(rows, 1, 8 * rows * columns, for (size_t r = at.from; r < at.from + at.n; r++)
          scaled(y + r * columns, x + r * columns, draw(o.key, (uint64_t)ids[r]) < o.threshold ? 0 : o.scale, columns););
}

INLINE void rotate_of(void *y, const void *x, const struct rotation *o, const float *table, struct part rows, int bf16) {
    const size_t half = o->s / 2;
    const float sign = o->inverse ? -1 : 1;
    for (size_t r = rows.from; r < rows.from + rows.n; r++) {
        const float *cosines = table + r % o->t * o->s, *sines = cosines + half;
        for (size_t head = 0; head < o->heads; head++) {
            const size_t at = (r * o->heads + head) * o->s;
            LANES(half, vec c = get(cosines + i, part); vec s = get(sines + i, part) * sign;
                  vec a = fetch(x, at + i, part, bf16); vec b = fetch(x, at + half + i, part, bf16);
                  keep(y, at + i, a * c - b * s, part, bf16); keep(y, at + half + i, b * c + a * s, part, bf16););
        }
    }
}

static void rotate(struct avg_device *d, struct elements y, struct elements x, struct rotation o, const float *table,
                   size_t rows) {
    PARTS(rows, 1, 8 * rows * o.heads * o.s, TYPED(bf16, x.bf16, rotate_of(y.data, x.data, &o, table, at, bf16);););
}

static void embed(struct avg_device *d, float *out, const float *tokens, const float *positions, const int32_t *ids, size_t rows, size_t t,
                  size_t width, int add) {
    PARTS(rows, 1, 12 * rows * width, for (size_t r = at.from; r < at.from + at.n; r++) {
        const float *token = tokens + (size_t)ids[r] * width;
        float *row = out + r * width;
        if (add || positions)
            added(row, token, add ? row : positions + r % t * width, width);
        else
            memcpy(row, token, width * sizeof *row);
    });
}

// Cut by columns, so that each element's additions happen in the order of the rows.
static void embed_backward(struct avg_device *d, float *dtokens, float *dpositions, const float *dout, const int32_t *ids, size_t rows, size_t t,
                           size_t width) {
    PARTS(width, LINE, 20 * rows * width, for (size_t r = 0; r < rows; r++) {
        const float *row = dout + r * width + at.from;
        float *token = dtokens + (size_t)ids[r] * width + at.from;
        added(token, token, row, at.n);
        if (!dpositions) continue;
        float *position = dpositions + r % t * width + at.from;
        added(position, position, row, at.n);
    });
}
