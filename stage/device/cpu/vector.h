// Vectors of WIDTH floats by the compiler's vector extensions, with loads and stores of a part of one. Included by
// kernels_body.h only, after WIDTH, LANE_NUMBERS and the VECTOR_ operations are defined.

#define INLINE static inline __attribute__((always_inline))

typedef float vec __attribute__((vector_size(4 * WIDTH)));
typedef int32_t ivec __attribute__((vector_size(4 * WIDTH)));
typedef float half __attribute__((vector_size(2 * WIDTH)));   // half as many floats
typedef double dvec __attribute__((vector_size(4 * WIDTH)));  // half as many doubles

INLINE vec splat(float a) { return a - (vec){0}; }

INLINE vec fused(vec a, vec b, vec c) { return VECTOR_FMA(a, b, c); }

INLINE vec load(const float *p) {
    vec v;
    memcpy(&v, p, sizeof v);
    return v;
}

INLINE void store(float *p, vec v) { memcpy(p, &v, sizeof v); }

// get and put move the first `part` elements; the others read as 0. part is the constant WIDTH but in a tail.
INLINE vec get(const float *p, size_t part) {
    if (part == WIDTH) return load(p);
#if WIDTH == 16
    return (vec)_mm512_maskz_loadu_ps((__mmask16)((1u << part) - 1), p);
#else
    vec v = {0};
    for (size_t i = 0; i < part; i++) v[i] = p[i];
    return v;
#endif
}

INLINE void put(float *p, vec v, size_t part) {
    if (part == WIDTH) {
        store(p, v);
        return;
    }
#if WIDTH == 16
    _mm512_mask_storeu_ps(p, (__mmask16)((1u << part) - 1), (__m512)v);
#else
    for (size_t i = 0; i < part; i++) p[i] = v[i];
#endif
}

// get_bf16 and put_bf16 are get and put of bf16, the upper halves of floats. put_bf16 rounds to nearest, ties to even. A NaN stays one.
#if WIDTH == 16
INLINE vec get_bf16(const uint16_t *p, size_t part) {
    __m256i v = part == WIDTH ? _mm256_loadu_si256((const __m256i *)p) : _mm256_maskz_loadu_epi16((__mmask16)((1u << part) - 1), p);
    return (vec)_mm512_slli_epi32(_mm512_cvtepu16_epi32(v), 16);
}

INLINE void put_bf16(uint16_t *p, vec x, size_t part) {
    const __m512i bits = (__m512i)x, odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
    const __mmask16 nan = _mm512_cmp_ps_mask((__m512)x, (__m512)x, _CMP_UNORD_Q);
    rounded = _mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x400000));
    const __m256i v = _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16));
    if (part == WIDTH)
        _mm256_storeu_si256((__m256i *)p, v);
    else
        _mm256_mask_storeu_epi16(p, (__mmask16)((1u << part) - 1), v);
}
#else
typedef uint16_t shorts __attribute__((vector_size(2 * WIDTH)));  // WIDTH bf16

INLINE vec get_bf16(const uint16_t *p, size_t part) {
    shorts v = {0};
    if (part == WIDTH)
        memcpy(&v, p, sizeof v);
    else
        for (size_t i = 0; i < part; i++) v[i] = p[i];
    return (vec)(__builtin_convertvector(v, ivec) << 16);
}

INLINE void put_bf16(uint16_t *p, vec x, size_t part) {
    ivec bits = (ivec)x;
    ivec rounded = bits + 0x7fff + ((bits >> 16) & 1), quiet = bits | 0x400000;
    ivec nan = x != x;
    shorts v = __builtin_convertvector(((rounded & ~nan) | (quiet & nan)) >> 16, shorts);
    if (part == WIDTH)
        memcpy(p, &v, sizeof v);
    else
        for (size_t i = 0; i < part; i++) p[i] = v[i];
}
#endif

// fetch and keep are get and put of elements i to i + part of floats or of bf16.
INLINE vec fetch(const void *p, size_t i, size_t part, int bf16) {
    return bf16 ? get_bf16((const uint16_t *)p + i, part) : get((const float *)p + i, part);
}

INLINE void keep(void *p, size_t i, vec v, size_t part, int bf16) {
    if (bf16)
        put_bf16((uint16_t *)p + i, v, part);
    else
        put((float *)p + i, v, part);
}

// stream is fetch for operands that are read from end to end, once: it asks for what is needed AHEAD bytes later. The
// processor's own prefetching ends with each page of 4 KiB.
enum { AHEAD = 4096 };

INLINE vec stream(const void *p, size_t i, size_t part, int bf16) {
    __builtin_prefetch((const char *)p + i * (bf16 ? 2 : 4) + AHEAD);
    return fetch(p, i, part, bf16);
}

// SPAN runs a block for i = from, from + WIDTH, ... below to, with part elements at i: WIDTH, and the rest at the end. Every element
// goes through the same arithmetic, in the tail too.
#define SPAN(from, to, ...)                              \
    do {                                                 \
        size_t i = (from);                               \
        for (; i + WIDTH <= (to); i += WIDTH) {          \
            enum { part = WIDTH };                       \
            __VA_ARGS__                                  \
        }                                                \
        if (i < (to)) {                                  \
            const size_t part = (to) - i;                \
            __VA_ARGS__                                  \
        }                                                \
    } while (0)

#define LANES(n, ...) SPAN(0, n, __VA_ARGS__)

// TYPED runs a block with the constant `bf16`, which is whether flag is set: each type has code of its own.
#define TYPED(bf16, flag, ...)       \
    do {                             \
        if (flag) {                  \
            enum { bf16 = 1 };       \
            __VA_ARGS__;             \
        } else {                     \
            enum { bf16 = 0 };       \
            __VA_ARGS__;             \
        }                            \
    } while (0)

// choose is a where mask is set, else b.
INLINE vec choose(ivec mask, vec a, vec b) { return (vec)(((ivec)a & mask) | ((ivec)b & ~mask)); }

// only keeps the first `part` elements of v and sets the others to 0.
INLINE vec only(vec v, size_t part) {
    if (part == WIDTH) return v;
    for (size_t i = part; i < WIDTH; i++) v[i] = 0;
    return v;
}

// highest and lowest return b where either element is a NaN.
INLINE vec highest(vec a, vec b) { return VECTOR_MAX(a, b); }
INLINE vec lowest(vec a, vec b) { return VECTOR_MIN(a, b); }

static const ivec lanes = LANE_NUMBERS;

// flushed is device.Flush: it gives the same whatever the processor takes denormals for.
INLINE vec flushed(vec v) { return (vec)((ivec)v & ~((ivec)(v < 1e-30f) & (ivec)(v > -1e-30f))); }

// total adds the elements pairwise, in a fixed order.
INLINE float total(vec v) {
#pragma GCC unroll 4
    for (int step = WIDTH / 2; step > 0; step /= 2) v += __builtin_shuffle(v, lanes ^ step);
    return v[0];
}

// largest is the largest element, or any one where there is a NaN.
INLINE float largest(vec v) {
#pragma GCC unroll 4
    for (int step = WIDTH / 2; step > 0; step /= 2) v = highest(v, __builtin_shuffle(v, lanes ^ step));
    return v[0];
}

// transpose turns WIDTH rows into columns: every step swaps the off-diagonal blocks of `step` by `step` elements.
INLINE void transpose(vec rows[WIDTH]) {
#pragma GCC unroll 4
    for (int step = 1; step < WIDTH; step *= 2) {
        const ivec second = (lanes & step) != 0;  // all ones in the lanes that a block's right half has
        const ivec upper = lanes + (second & (WIDTH - step)), lower = lanes + step + (second & (WIDTH - step));
#pragma GCC unroll 16
        for (int r = 0; r < WIDTH; r++) {
            if (r & step) continue;
            vec a = rows[r], b = rows[r + step];
            rows[r] = __builtin_shuffle(a, b, upper);
            rows[r + step] = __builtin_shuffle(a, b, lower);
        }
    }
}

// vexp is e to the x with a relative error below 2e-7: x = n ln 2 + r with |r| <= ln(2)/2, and the Taylor series of e^r to
// r^7. From n = 128 on it is infinite (above 88.4), at n = -127 it is 0 (below -87.7): the exponent's field is all ones or
// all zeros then. A NaN stays one.
INLINE vec vexp(vec x) {
    const vec magic = splat(12582912.0f);  // 1.5 * 2^23: adding it leaves the nearest integer in the low bits
    vec clamped = highest(splat(-88.0f), lowest(splat(89.0f), x));
    vec shifted = fused(clamped, splat(1.44269504f), magic);
    vec n = shifted - magic;
    vec r = fused(n, splat(-0.693359375f), clamped);
    r = fused(n, splat(2.12194440e-4f), r);
    vec p = splat(1.0f / 5040);
    p = fused(p, r, splat(1.0f / 720));
    p = fused(p, r, splat(1.0f / 120));
    p = fused(p, r, splat(1.0f / 24));
    p = fused(p, r, splat(1.0f / 6));
    p = fused(p, r, splat(0.5f));
    p = fused(p, r, splat(1.0f));
    p = fused(p, r, splat(1.0f));
    return p * (vec)(((ivec)shifted - (ivec)magic + 127) << 23);
}

INLINE vec sigmoid(vec x) { return 1.0f / (1.0f + vexp(-x)); }

INLINE vec vtanh(vec x) { return 1.0f - 2.0f / (1.0f + vexp(x + x)); }

// positive is max(v, 0); a NaN stays one.
INLINE vec positive(vec v) { return (vec)((ivec)v & ~(ivec)(v <= splat(0))); }

INLINE vec where_positive(vec condition, vec v) { return (vec)((ivec)(condition > splat(0)) & (ivec)v); }

// Pairs of bf16: a vector of WIDTH pairs, each in the place of a float. For instruction sets that do not have them these are never called.
#ifdef HAS_PAIRS
// get_pairs are pairs i to i + WIDTH of a row of s elements. Beyond its end they are 0.
INLINE vec get_pairs(const uint16_t *row, size_t i, size_t s) {
    const size_t left = s - 2 * i;
    return (vec)_mm512_maskz_loadu_epi16(left < 32 ? (1u << left) - 1 : ~0u, row + 2 * i);
}

INLINE vec same_pair(const float *p) {
    int32_t bits;
    memcpy(&bits, p, sizeof bits);
    return (vec)_mm512_set1_epi32(bits);
}

// fused_pairs adds to c the products of both elements of the pairs of a and b.
INLINE vec fused_pairs(vec a, vec b, vec c) { return (vec)_mm512_dpbf16_ps((__m512)c, (__m512bh)a, (__m512bh)b); }

// round_pairs rounds the elements of a, then those of b.
INLINE vec round_pairs(vec a, vec b) { return (vec)_mm512_cvtne2ps_pbh((__m512)b, (__m512)a); }

// interleave makes pairs of what round_pairs returns: an element of a with one of b.
INLINE vec interleave(vec v) {
    const ivec order = lanes | (lanes + WIDTH) << 16;
    return (vec)_mm512_permutexvar_epi16((__m512i)order, (__m512i)v);
}

INLINE void store_half(float *p, vec v, int second) {
    memcpy(p, (char *)&v + (second ? sizeof v / 2 : 0), sizeof v / 2);
}
#else
enum { HAS_PAIRS = 0 };
INLINE vec get_pairs(const uint16_t *row, size_t i, size_t s) { return (void)row, (void)i, (void)s, (vec){0}; }
INLINE vec same_pair(const float *p) { return splat(*p); }
INLINE vec fused_pairs(vec a, vec b, vec c) { return fused(a, b, c); }
INLINE vec round_pairs(vec a, vec b) { return a + b; }
INLINE vec interleave(vec v) { return v; }
INLINE void store_half(float *p, vec v, int second) { p[second] = v[0]; }
#endif
