// The kernels of vision.h. Included by vision_*.c only, after the instruction set.

#include <math.h>
#include <string.h>

#include "vision.h"
#include "vector.h"

// A vector of channels goes down the rows of a block, which lies in the cache: with AVX-512 each is a cache line. Four rows
// at a time, j = 0 to 3, keep four sums in flight.
#define DOWN(rows, ...)                          \
    do {                                         \
        size_t r = 0;                            \
        for (; r + 4 <= (rows); r += 4) {        \
            _Pragma("GCC unroll 4") for (int j = 0; j < 4; j++) { \
                const size_t at = (r + (size_t)j) * c + i; \
                __VA_ARGS__                      \
            }                                    \
        }                                        \
        for (; r < (rows); r++) {                \
            enum { j = 0 };                      \
            const size_t at = r * c + i;         \
            __VA_ARGS__                          \
        }                                        \
    } while (0)

INLINE vec sum_of(const vec s[4]) { return (s[0] + s[1]) + (s[2] + s[3]); }

// The mean first, then the differences from it, as in moments of kernels_body.h. The block stays in the cache in between.
static void column_moments(float *mean, float *squares, const float *x, const float *origins, size_t rows, size_t c) {
    const float share = 1 / (float)rows;
    LANES(c, vec sums[4] = {{0}}; vec differences[4] = {{0}}; vec products[4] = {{0}};
          const vec origin = get(origins + i, part);
          DOWN(rows, sums[j] += get(x + at, part) - origin;);
          vec first = fused(sum_of(sums), splat(share), origin);
          DOWN(rows, vec d = get(x + at, part) - first; differences[j] += d; products[j] = fused(d, d, products[j]););
          vec correction = sum_of(differences) * share;
          put(mean + i, (first - origin) + correction, part);
          put(squares + i, highest(splat(0), sum_of(products) - correction * correction * (float)rows), part););
}

// The parallel form of Chan, Golub and LeVeque 1983, equation 2.1, over all blocks and then all channels of a group at once.
static void merge(float *mean, float *variance, double *channels, const float *moments, const float *origins, size_t blocks,
                  size_t rows, size_t p, size_t c, size_t groups) {
    double *means = channels, *squares = channels + c;
    memset(channels, 0, 2 * c * sizeof *channels);
    for (size_t b = 0; b < blocks; b++) {
        const double n = (double)(b + 1 < blocks ? rows : p - b * rows);
        const float *block = moments + b * 2 * c;
        for (size_t i = 0; i < c; i++) means[i] += n * block[i];
    }
    for (size_t i = 0; i < c; i++) means[i] /= (double)p;
    for (size_t b = 0; b < blocks; b++) {
        const double n = (double)(b + 1 < blocks ? rows : p - b * rows);
        const float *block = moments + b * 2 * c;
        for (size_t i = 0; i < c; i++) {
            double apart = block[i] - means[i];
            squares[i] += block[c + i] + n * apart * apart;
        }
    }
    for (size_t i = 0; i < c; i++) means[i] += origins[i];
    const size_t width = c / groups;
    for (size_t g = 0; g < groups; g++, means += width, squares += width) {
        double sum = 0, square = 0;
        for (size_t i = 0; i < width; i++) sum += means[i];
        sum /= (double)width;
        for (size_t i = 0; i < width; i++) square += squares[i] + (double)p * (means[i] - sum) * (means[i] - sum);
        mean[g] = (float)sum;
        variance[g] = (float)(square / ((double)p * (double)width));
    }
}

// positive is max(v, 0); a NaN stays one.
INLINE vec positive(vec v) { return (vec)((ivec)v & ~(ivec)(v <= splat(0))); }

INLINE vec where_positive(vec condition, vec v) { return (vec)((ivec)(condition > splat(0)) & (ivec)v); }

// constants are what a vector of channels has in registers while it goes down the rows.
struct constants {
    vec mean, scale, bias, offset, slope;
};

INLINE struct constants constants_at(struct channels n, size_t i, size_t part) {
    return (struct constants){.mean = get(n.mean + i, part), .scale = get(n.scale + i, part), .bias = get(n.bias + i, part)};
}

// before_relu is the same in the forward and in the backward, to the bit, so that both mask the same elements.
INLINE vec before_relu(const float *x, const float *skip, const struct constants *k, size_t at, size_t part) {
    vec z = fused(get(x + at, part) - k->mean, k->scale, k->bias);
    return skip ? z + get(skip + at, part) : z;
}

INLINE void normalize_columns(float *y, const float *x, const float *skip, struct channels n, size_t rows, size_t c, int relu) {
    LANES(c, const struct constants k = constants_at(n, i, part);
          DOWN(rows, vec z = before_relu(x, skip, &k, at, part); put(y + at, relu ? positive(z) : z, part);););
}

// The constants make a loop for each case.
static void normalize(float *y, const float *x, const float *skip, struct channels n, size_t rows, size_t c, int relu) {
    if (skip)
        relu ? normalize_columns(y, x, skip, n, rows, c, 1) : normalize_columns(y, x, skip, n, rows, c, 0);
    else
        relu ? normalize_columns(y, x, NULL, n, rows, c, 1) : normalize_columns(y, x, NULL, n, rows, c, 0);
}

INLINE vec masked_at(const float *dy, const float *x, const float *skip, const struct constants *k, size_t at, size_t part,
                     int relu) {
    vec d = get(dy + at, part);
    return relu ? where_positive(before_relu(x, skip, k, at, part), d) : d;
}

INLINE void masked_columns(float *first, float *second, float *dz, const float *dy, const float *x, const float *skip,
                           struct channels n, size_t rows, size_t c, int relu) {
    LANES(c, vec sums[4] = {{0}}; vec products[4] = {{0}}; const struct constants k = constants_at(n, i, part);
          DOWN(rows, vec d = masked_at(dy, x, skip, &k, at, part, relu); if (dz) put(dz + at, d, part); sums[j] += d;
               products[j] = fused(d, get(x + at, part) - k.mean, products[j]););
          put(first + i, sum_of(sums), part); put(second + i, sum_of(products), part););
}

static void masked(float *first, float *second, float *dz, const float *dy, const float *x, const float *skip,
                   struct channels n, size_t rows, size_t c, int relu) {
    if (skip)
        masked_columns(first, second, dz, dy, x, skip, n, rows, c, relu);
    else
        relu ? masked_columns(first, second, dz, dy, x, NULL, n, rows, c, 1)
             : masked_columns(first, second, dz, dy, x, NULL, n, rows, c, 0);
}

INLINE void spread_columns(float *dx, const float *dy, const float *x, const float *skip, struct channels n, size_t rows,
                           size_t c, int relu) {
    LANES(c, struct constants k = constants_at(n, i, part); k.offset = get(n.offset + i, part);
          k.slope = get(n.slope + i, part);
          DOWN(rows, vec d = masked_at(dy, x, skip, &k, at, part, relu);
               vec rest = fused(get(x + at, part) - k.mean, k.slope, k.offset);
               put(dx + at, fused(d, k.scale, rest), part);););
}

static void spread(float *dx, const float *dy, const float *x, const float *skip, struct channels n, size_t rows, size_t c,
                   int relu) {
    if (skip)
        spread_columns(dx, dy, x, skip, n, rows, c, relu);
    else
        relu ? spread_columns(dx, dy, x, NULL, n, rows, c, 1) : spread_columns(dx, dy, x, NULL, n, rows, c, 0);
}

static void relu(float *y, const float *x, size_t n) { LANES(n, put(y + i, positive(get(x + i, part)), part);); }

static void relu_backward(float *dx, const float *dy, const float *x, size_t n) {
    LANES(n, put(dx + i, where_positive(get(x + i, part), get(dy + i, part)), part););
}

// beats says in which lanes v is larger than best, or the first NaN.
INLINE ivec beats(vec v, vec best) { return (ivec)(v > best) | ((ivec)(v != v) & (ivec)(best == best)); }

static void max_pool(float *y, const float *image, struct window w, size_t c) {
    LANES(c, vec best = get(image + (w.top * w.width + w.left) * c + i, part);
          for (size_t row = w.top; row < w.bottom; row++) for (size_t column = w.left; column < w.right; column++) {
              vec v = get(image + (row * w.width + column) * c + i, part);
              ivec wins = beats(v, best);
              best = (vec)(((ivec)v & wins) | ((ivec)best & ~wins));
          } put(y + i, best, part););
}

static void max_pool_backward(float *dimage, const float *dy, const float *image, struct window w, size_t c) {
    LANES(c, vec best = get(image + (w.top * w.width + w.left) * c + i, part); ivec winner = {0}; int32_t index = 0;
          for (size_t row = w.top; row < w.bottom; row++)
              for (size_t column = w.left; column < w.right; column++, index++) {
                  vec v = get(image + (row * w.width + column) * c + i, part);
                  ivec wins = beats(v, best);
                  best = (vec)(((ivec)v & wins) | ((ivec)best & ~wins));
                  winner = (index & wins) | (winner & ~wins);
              }
          vec d = get(dy + i, part); index = 0;
          for (size_t row = w.top; row < w.bottom; row++)
              for (size_t column = w.left; column < w.right; column++, index++) {
                  float *to = dimage + (row * w.width + column) * c + i;
                  put(to, get(to, part) + (vec)((ivec)d & (ivec)(winner == index)), part);
              });
}

static void average(float *y, const float *x, size_t rows, size_t c) {
    const float share = 1 / (float)rows;
    LANES(c, vec sums[4] = {{0}}; DOWN(rows, sums[j] += get(x + at, part);); put(y + i, sum_of(sums) * share, part););
}

static void scaled(float *y, const float *x, float a, size_t n) { LANES(n, put(y + i, get(x + i, part) * a, part);); }

const struct vision_kernels VISION_TABLE = {
    .moments = column_moments,
    .merge = merge,
    .normalize = normalize,
    .masked = masked,
    .spread = spread,
    .relu = relu,
    .relu_backward = relu_backward,
    .max_pool = max_pool,
    .max_pool_backward = max_pool_backward,
    .average = average,
    .scaled = scaled,
};
