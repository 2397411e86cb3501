// The kernels of transformer.h. Included by kernels_body.h.

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

static void dropout(float *y, const float *x, size_t n, size_t copies, size_t stride, uint64_t first, struct dropout d) {
    uint32_t draws[DRAWS + WIDTH];
    for (size_t done = 0, skip, count; done < n; done += count) {
        count = drawn(draws, n - done, first + done, d.key, &skip);
        for (size_t r = 0; r < copies; r++) {
            const float *from = x + r * stride + done;
            float *to = y + r * stride + done;
            LANES(count, ivec keep = kept(draws + skip + i, d.threshold);
                  put(to + i, (vec)((ivec)(get(from + i, part) * d.scale) & keep), part););
        }
    }
}

typedef uint16_t hvec __attribute__((vector_size(2 * WIDTH)));

// get_brain and put_brain are get and put of bfloat16 numbers.
INLINE vec get_brain(const uint16_t *p, size_t part) {
    hvec h = {0};
    memcpy(&h, p, part * sizeof *p);
    return (vec)(__builtin_convertvector(h, uvec) << 16);
}

// The nearest, of two equally near the even one. A NaN that came from bfloat16 stays one: its lower half is 0.
INLINE void put_brain(uint16_t *p, vec v, size_t part) {
    uvec bits = (uvec)v;
    hvec h = __builtin_convertvector((bits + 0x7fff + ((bits >> 16) & 1)) >> 16, hvec);
    memcpy(p, &h, part * sizeof *p);
}

static void dropout_bf16(uint16_t *y, const uint16_t *x, size_t n, size_t copies, size_t stride, uint64_t first,
                         struct dropout d) {
    uint32_t draws[DRAWS + WIDTH];
    for (size_t done = 0, skip, count; done < n; done += count) {
        count = drawn(draws, n - done, first + done, d.key, &skip);
        for (size_t r = 0; r < copies; r++) {
            const uint16_t *from = x + r * stride + done;
            uint16_t *to = y + r * stride + done;
            LANES(count, ivec keep = kept(draws + skip + i, d.threshold);
                  put_brain(to + i, (vec)((ivec)(get_brain(from + i, part) * d.scale) & keep), part););
        }
    }
}

#define TRANSFORMER_KERNELS              \
    {                                    \
        .dropout = dropout,              \
        .dropout_bf16 = dropout_bf16,    \
    }
