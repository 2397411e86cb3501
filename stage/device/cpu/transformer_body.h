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

INLINE void dropout_of(void *y, const void *x, size_t n, size_t copies, size_t stride, uint64_t first, struct dropout d,
                       int bf16) {
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

static void dropout(void *y, const void *x, size_t n, size_t copies, size_t stride, uint64_t first, struct dropout d, int bf16) {
    if (bf16)
        dropout_of(y, x, n, copies, stride, first, d, 1);
    else
        dropout_of(y, x, n, copies, stride, first, d, 0);
}

INLINE void rms_norm_of(void *y, float *rstd, const float *x, const float *weight, size_t rows, size_t columns, float epsilon,
                        int bf16) {
    for (size_t r = 0; r < rows; r++) {
        const size_t at = r * columns;
        vec squares[4] = {{0}};
        size_t quads = columns / (4 * WIDTH) * (4 * WIDTH);
        for (size_t i = 0; i < quads; i += 4 * WIDTH)
#pragma GCC unroll 4
            for (int j = 0; j < 4; j++) {
                vec v = load(x + at + i + j * WIDTH);
                squares[j] = fused(v, v, squares[j]);
            }
        LANES(columns - quads, vec v = get(x + at + quads + i, part); squares[0] = fused(v, v, squares[0]););
        float sum = total((squares[0] + squares[1]) + (squares[2] + squares[3]));
        float s = (float)(1 / sqrt((double)sum / (double)columns + (double)epsilon));
        rstd[r] = s;
        LANES(columns, keep(y, at + i, get(x + at + i, part) * s * get(weight + i, part), part, bf16););
    }
}

static void rms_norm(void *y, float *rstd, const float *x, const float *weight, size_t rows, size_t columns, float epsilon,
                     int bf16) {
    if (bf16)
        rms_norm_of(y, rstd, x, weight, rows, columns, epsilon, 1);
    else
        rms_norm_of(y, rstd, x, weight, rows, columns, epsilon, 0);
}

INLINE void rms_norm_backward_of(float *dx, const void *dy, const float *x, const float *rstd, const float *weight, const float *plus,
                                 size_t rows, size_t columns, int bf16) {
    for (size_t r = 0; r < rows; r++) {
        const size_t at = r * columns;
        const float s = rstd[r];
        vec sum = {0};
        LANES(columns, vec g = fetch(dy, at + i, part, bf16) * get(weight + i, part);
              sum = fused(g, get(x + at + i, part) * s, sum););
        const float mean = total(sum) / (float)columns;
        LANES(columns, vec g = fetch(dy, at + i, part, bf16) * get(weight + i, part);
              vec v = (g - get(x + at + i, part) * s * mean) * s; if (plus) v += get(plus + at + i, part);
              put(dx + at + i, v, part););
    }
}

static void rms_norm_backward(float *dx, const void *dy, const float *x, const float *rstd, const float *weight, const float *plus,
                              size_t rows, size_t columns, int bf16) {
    if (bf16)
        rms_norm_backward_of(dx, dy, x, rstd, weight, plus, rows, columns, 1);
    else
        rms_norm_backward_of(dx, dy, x, rstd, weight, plus, rows, columns, 0);
}

INLINE void rotate_of(void *y, const void *x, const struct rotation *o, size_t row, size_t rows, int bf16) {
    const size_t half = o->s / 2;
    const float sign = o->inverse ? -1 : 1;
    for (size_t r = row; r < row + rows; r++) {
        const float *cosines = o->table + r % o->t * o->s, *sines = cosines + half;
        for (size_t head = 0; head < o->heads; head++) {
            const size_t at = (r * o->heads + head) * o->s;
            LANES(half, vec c = get(cosines + i, part); vec s = get(sines + i, part) * sign;
                  vec a = fetch(x, at + i, part, bf16); vec b = fetch(x, at + half + i, part, bf16);
                  keep(y, at + i, a * c - b * s, part, bf16); keep(y, at + half + i, b * c + a * s, part, bf16););
        }
    }
}

static void rotate(void *y, const void *x, const struct rotation *o, size_t row, size_t rows, int bf16) {
    if (bf16)
        rotate_of(y, x, o, row, rows, 1);
    else
        rotate_of(y, x, o, row, rows, 0);
}

INLINE vec sigmoid(vec x) { return 1.0f / (1.0f + vexp(-x)); }

INLINE void swiglu_of(void *y, const void *gate, const void *up, size_t from, size_t n, int bf16) {
    LANES(n, vec g = fetch(gate, from + i, part, bf16);
          keep(y, from + i, g * sigmoid(g) * fetch(up, from + i, part, bf16), part, bf16););
}

static void swiglu(void *y, const void *gate, const void *up, size_t from, size_t n, int bf16) {
    if (bf16)
        swiglu_of(y, gate, up, from, n, 1);
    else
        swiglu_of(y, gate, up, from, n, 0);
}

INLINE void swiglu_backward_of(void *dgate, void *dup, const void *dy, const void *gate, const void *up, size_t from, size_t n,
                               int bf16) {
    LANES(n, vec d = fetch(dy, from + i, part, bf16); vec g = fetch(gate, from + i, part, bf16);
          vec u = fetch(up, from + i, part, bf16); vec s = sigmoid(g);
          keep(dgate, from + i, d * u * s * fused(g, 1.0f - s, splat(1)), part, bf16);
          keep(dup, from + i, d * g * s, part, bf16););
}

static void swiglu_backward(void *dgate, void *dup, const void *dy, const void *gate, const void *up, size_t from, size_t n,
                            int bf16) {
    if (bf16)
        swiglu_backward_of(dgate, dup, dy, gate, up, from, n, 1);
    else
        swiglu_backward_of(dgate, dup, dy, gate, up, from, n, 0);
}

// normal returns the standard normal distribution's cumulative probability at x, within 1e-7, and sets *density: Abramowitz
// and Stegun 1964, formula 26.2.17 with the coefficients of 7.1.26.
INLINE vec normal(vec x, vec *density) {
    vec z = highest(x, -x) * 0.70710678f;  // |x| / sqrt(2)
    vec t = 1.0f / fused(z, splat(0.3275911f), splat(1));
    vec p = splat(1.061405429f);
    p = fused(p, t, splat(-1.453152027f));
    p = fused(p, t, splat(1.421413741f));
    p = fused(p, t, splat(-0.284496736f));
    p = fused(p, t, splat(0.254829592f));
    vec e = vexp(-z * z);
    vec tail = 0.5f * p * t * e;  // the probability beyond |x|
    *density = e * 0.39894228f;
    ivec negative = x < 0.0f;
    return (vec)(((ivec)tail & negative) | ((ivec)(1.0f - tail) & ~negative));
}

INLINE void gelu_erf_of(void *y, const void *x, size_t from, size_t n, int bf16) {
    LANES(n, vec v = fetch(x, from + i, part, bf16); vec density;
          keep(y, from + i, v * normal(v, &density), part, bf16););
}

static void gelu_erf(void *y, const void *x, size_t from, size_t n, int bf16) {
    if (bf16)
        gelu_erf_of(y, x, from, n, 1);
    else
        gelu_erf_of(y, x, from, n, 0);
}

INLINE void gelu_erf_backward_of(void *dx, const void *dy, const void *x, size_t from, size_t n, int bf16) {
    LANES(n, vec v = fetch(x, from + i, part, bf16); vec density; vec p = normal(v, &density);
          keep(dx, from + i, fetch(dy, from + i, part, bf16) * fused(v, density, p), part, bf16););
}

static void gelu_erf_backward(void *dx, const void *dy, const void *x, size_t from, size_t n, int bf16) {
    if (bf16)
        gelu_erf_backward_of(dx, dy, x, from, n, 1);
    else
        gelu_erf_backward_of(dx, dy, x, from, n, 0);
}

// tanh(x) = 1 - 2 / (1 + exp(2x)).
static void tanhs(float *y, const float *x, size_t n) {
    LANES(n, put(y + i, 1.0f - 2.0f / (1.0f + vexp(2.0f * get(x + i, part))), part););
}

static void tanh_backward(float *dx, const float *dy, const float *y, size_t n) {
    LANES(n, vec v = get(y + i, part); put(dx + i, get(dy + i, part) * (1.0f - v * v), part););
}

#define TRANSFORMER_KERNELS                                     \
    {                                                           \
        .dropout = dropout,                                     \
        .rms_norm = rms_norm,                                   \
        .rms_norm_backward = rms_norm_backward,                 \
        .rotate = rotate,                                       \
        .swiglu = swiglu,                                       \
        .swiglu_backward = swiglu_backward,                     \
        .gelu_erf = gelu_erf,                                   \
        .gelu_erf_backward = gelu_erf_backward,                 \
        .tanhs = tanhs,                                         \
        .tanh_backward = tanh_backward,                         \
    }
