// Operations of convolutional networks. Images lie with their channels last, so that an operation works on rows of `c` channels. Included
// by kernels_body.h.

// Per channel of one sample, (C) each: what a norm multiplies and adds.
struct channels {
    const float *mean, *scale, *bias;  // scale is weight * rstd
    const float *offset, *slope;       // of the backward: dx = scale dz + offset + slope (x - mean)
};

// A window of a pool: rows [top, bottom) and columns [left, right) of an image `width` pixels wide.
struct window {
    size_t top, bottom, left, right, width;
};

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

// column_moments has of `rows` rows how far each channel's mean lies from its origin, and the sum of the squares of the differences from that
// mean. Elements that are all nearly the same keep their differences where the origin is one of them.
//
// The mean first, then the differences from it, as in moments of rows_body.h. The block stays in the cache in between.
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

// merge makes statistics (groups) of one sample of the moments of its `blocks` blocks, (blocks,2,C), which have `rows` rows each but for the
// last: p in all. channels (2,C) is scratch.
//
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

// CASES makes a loop for each case: a skip or none, a ReLU or none.
#define CASES(columns, ...)                                                                          \
    do {                                                                                             \
        if (skip)                                                                                    \
            relu ? columns(__VA_ARGS__, skip, 1) : columns(__VA_ARGS__, skip, 0);                    \
        else                                                                                         \
            relu ? columns(__VA_ARGS__, NULL, 1) : columns(__VA_ARGS__, NULL, 0);                    \
    } while (0)

INLINE void normalize_columns(float *y, const float *x, struct channels n, size_t rows, size_t c, const float *skip, int relu) {
    LANES(c, const struct constants k = constants_at(n, i, part);
          DOWN(rows, vec z = before_relu(x, skip, &k, at, part); put(y + at, relu ? positive(z) : z, part);););
}

static void normalize(float *y, const float *x, const float *skip, struct channels n, size_t rows, size_t c, int relu) {
    CASES(normalize_columns, y, x, n, rows, c);
}

INLINE vec masked_at(const float *dy, const float *x, const float *skip, const struct constants *k, size_t at, size_t part,
                     int relu) {
    vec d = get(dy + at, part);
    return relu ? where_positive(before_relu(x, skip, k, at, part), d) : d;
}

INLINE void masked_columns(float *first, float *second, float *dz, const float *dy, const float *x, struct channels n, size_t rows, size_t c,
                           const float *skip, int relu) {
    LANES(c, vec sums[4] = {{0}}; vec products[4] = {{0}}; const struct constants k = constants_at(n, i, part);
          DOWN(rows, vec d = masked_at(dy, x, skip, &k, at, part, relu); if (dz) put(dz + at, d, part); sums[j] += d;
               products[j] = fused(d, get(x + at, part) - k.mean, products[j]););
          put(first + i, sum_of(sums), part); put(second + i, sum_of(products), part););
}

// masked sums the gradient before the ReLU, dz, and dz (x - mean) over the rows. dz may be NULL.
static void masked(float *first, float *second, float *dz, const float *dy, const float *x, const float *skip,
                   struct channels n, size_t rows, size_t c, int relu) {
    CASES(masked_columns, first, second, dz, dy, x, n, rows, c);
}

INLINE void spread_columns(float *dx, const float *dy, const float *x, struct channels n, size_t rows, size_t c, const float *skip,
                           int relu) {
    LANES(c, struct constants k = constants_at(n, i, part); k.offset = get(n.offset + i, part);
          k.slope = get(n.slope + i, part);
          DOWN(rows, vec d = masked_at(dy, x, skip, &k, at, part, relu);
               vec rest = fused(get(x + at, part) - k.mean, k.slope, k.offset);
               put(dx + at, fused(d, k.scale, rest), part);););
}

static void spread_rows(float *dx, const float *dy, const float *x, const float *skip, struct channels n, size_t rows, size_t c,
                   int relu) {
    CASES(spread_columns, dx, dy, x, n, rows, c);
}

// beats says in which lanes v is larger than best, or the first NaN.
INLINE ivec beats(vec v, vec best) { return (ivec)(v > best) | ((ivec)(v != v) & (ivec)(best == best)); }

INLINE void window_max(float *y, const float *image, struct window w, size_t c) {
    LANES(c, vec best = get(image + (w.top * w.width + w.left) * c + i, part);
          for (size_t row = w.top; row < w.bottom; row++) for (size_t column = w.left; column < w.right; column++) {
              vec v = get(image + (row * w.width + column) * c + i, part);
              ivec wins = beats(v, best);
              best = choose(wins, v, best);
          } put(y + i, best, part););
}

static void window_max_backward(float *dimage, const float *dy, const float *image, struct window w, size_t c) {
    LANES(c, vec best = get(image + (w.top * w.width + w.left) * c + i, part); ivec winner = {0}; int32_t index = 0;
          for (size_t row = w.top; row < w.bottom; row++)
              for (size_t column = w.left; column < w.right; column++, index++) {
                  vec v = get(image + (row * w.width + column) * c + i, part);
                  ivec wins = beats(v, best);
                  best = choose(wins, v, best);
                  winner = (index & wins) | (winner & ~wins);
              }
          vec d = get(dy + i, part); index = 0;
          for (size_t row = w.top; row < w.bottom; row++)
              for (size_t column = w.left; column < w.right; column++, index++) {
                  float *to = dimage + (row * w.width + column) * c + i;
                  put(to, get(to, part) + (vec)((ivec)d & (ivec)(winner == index)), part);
              });
}

static void average_rows(float *y, const float *x, size_t rows, size_t c) {
    const float share = 1 / (float)rows;
    LANES(c, vec sums[4] = {{0}}; DOWN(rows, sums[j] += get(x + at, part);); put(y + i, sum_of(sums) * share, part););
}

// Statistics are taken over blocks of rows that fit the first-level cache and then merged. The blocks are the same for any
// number of threads, and so are the bits.
struct blocks {
    size_t rows, of_sample, count;
};

static struct blocks blocks_of(struct group_norm n) {
    enum { BLOCK = 8192, LEAST = 8 };  // elements, rows
    size_t rows = BLOCK / n.c < LEAST ? LEAST : BLOCK / n.c;
    size_t of_sample = (n.p + rows - 1) / rows;
    return (struct blocks){rows, of_sample, n.b * of_sample};
}

// block is one of them: where it begins, in rows of the whole, and how many rows it has.
struct block {
    size_t sample, from, rows;
};

static struct block block_at(struct blocks b, struct group_norm n, size_t index) {
    size_t sample = index / b.of_sample, from = index % b.of_sample * b.rows;
    return (struct block){sample, sample * n.p + from, n.p - from < b.rows ? n.p - from : b.rows};
}

static int group_moments(struct avg_device *d, float *mean, float *variance, const float *x,
                      struct group_norm n) {
    const struct blocks all = blocks_of(n);
    double *channels = avg_reserve(d, 2 * n.c * sizeof(double) + all.count * 2 * n.c * sizeof(float));
    if (!channels) return -1;
    float *moments = (float *)(channels + 2 * n.c);
    PARTS(all.count, 1, 4 * n.b * n.p * n.c, for (size_t i = at.from; i < at.from + at.n; i++) {
        struct block b = block_at(all, n, i);
        column_moments(moments + i * 2 * n.c, moments + (i * 2 + 1) * n.c, x + b.from * n.c, x + b.sample * n.p * n.c, b.rows, n.c);
    });
    for (size_t s = 0; s < n.b; s++)
        merge(mean + s * n.groups, variance + s * n.groups, channels, moments + s * all.of_sample * 2 * n.c,
                 x + s * n.p * n.c, all.of_sample, all.rows, n.p, n.c, n.groups);
    return 0;
}

static float deviation(const float *variance, size_t at, float epsilon) {
    return (float)(1 / sqrt((double)variance[at] + (double)epsilon));
}

enum { MEAN, SCALE, OFFSET, SLOPE, ARRAYS };  // of floats, (C) each, for every sample

static struct channels channels_at(const float *arrays, const float *bias, size_t sample, size_t c) {
    const float *of = arrays + sample * ARRAYS * c;
    return (struct channels){.mean = of + MEAN * c, .scale = of + SCALE * c, .bias = bias, .offset = of + OFFSET * c,
                             .slope = of + SLOPE * c};
}

// spread_statistics fills MEAN and SCALE of arrays (B,ARRAYS,C).
static void spread_statistics(float *arrays, const float *mean, const float *variance, const float *weight,
                              struct group_norm n) {
    const size_t width = n.c / n.groups;
    for (size_t i = 0; i < n.b * n.groups; i++) {
        float *of = arrays + i / n.groups * ARRAYS * n.c;
        const size_t first = i % n.groups * width;
        const float rstd = deviation(variance, i, n.epsilon);
        for (size_t c = first; c < first + width; c++) {
            of[MEAN * n.c + c] = mean[i];
            of[SCALE * n.c + c] = weight[c] * rstd;
        }
    }
}

static int group_norm(struct avg_device *d, float *y, const float *x, const float *skip,
                   const float *mean, const float *variance, const float *weight, const float *bias, struct group_norm n) {
    const struct blocks all = blocks_of(n);
    float *arrays = avg_reserve(d, n.b * ARRAYS * n.c * sizeof(float));
    if (!arrays) return -1;
    spread_statistics(arrays, mean, variance, weight, n);
    PARTS(all.count, 1, 8 * n.b * n.p * n.c, for (size_t i = at.from; i < at.from + at.n; i++) {
        struct block b = block_at(all, n, i);
        size_t from = b.from * n.c;
        normalize(y + from, x + from, skip ? skip + from : NULL, channels_at(arrays, bias, b.sample, n.c), b.rows, n.c,
                     n.relu);
    });
    return 0;
}

// add_blocks sets sums (2,B,C) to the sums of partial (blocks,2,C), the second half times rstd.
static void add_blocks(float *sums, const float *partial, const float *variance, struct blocks all, struct group_norm n) {
    const size_t width = n.c / n.groups;
    for (size_t s = 0; s < n.b; s++) {
        float *first = sums + s * n.c, *second = sums + (n.b + s) * n.c;
        for (size_t c = 0; c < n.c; c++) {
            double a = 0, b = 0;
            const float *from = partial + s * all.of_sample * 2 * n.c + c;
            for (size_t i = 0; i < all.of_sample; i++, from += 2 * n.c) {
                a += from[0];
                b += from[n.c];
            }
            first[c] = (float)a;
            second[c] = (float)(b * deviation(variance, s * n.groups + c / width, n.epsilon));
        }
    }
}

// spread_sums fills OFFSET and SLOPE: dx = rstd (weight dz - mean(g) - xhat mean(g xhat)) with g = weight dz.
static void spread_sums(float *arrays, const float *sums, const float *variance, const float *weight, struct group_norm n) {
    const size_t width = n.c / n.groups;
    const double count = (double)n.p * (double)width;
    for (size_t i = 0; i < n.b * n.groups; i++) {
        const size_t s = i / n.groups, from = i % n.groups * width;
        const float *first = sums + s * n.c, *second = sums + (n.b + s) * n.c;
        double g = 0, gx = 0;
        for (size_t c = from; c < from + width; c++) {
            g += (double)weight[c] * first[c];
            gx += (double)weight[c] * second[c];
        }
        const double rstd = deviation(variance, i, n.epsilon);
        float *of = arrays + s * ARRAYS * n.c;
        for (size_t c = from; c < from + width; c++) {
            of[OFFSET * n.c + c] = (float)(-rstd * g / count);
            of[SLOPE * n.c + c] = (float)(-rstd * rstd * gx / count);
        }
    }
}

static int group_norm_backward(struct avg_device *d, float *dx, float *dz, float *sums, const float *dy,
                            const float *x, const float *skip, const float *mean, const float *variance,
                            const float *weight, const float *bias, struct group_norm n) {
    const struct blocks all = blocks_of(n);
    float *arrays = avg_reserve(d, (n.b * ARRAYS + all.count * 2) * n.c * sizeof(float));
    if (!arrays) return -1;
    float *partial = arrays + n.b * ARRAYS * n.c;
    spread_statistics(arrays, mean, variance, weight, n);
    PARTS(all.count, 1, 8 * n.b * n.p * n.c, for (size_t i = at.from; i < at.from + at.n; i++) {
        struct block b = block_at(all, n, i);
        size_t from = b.from * n.c;
        masked(partial + i * 2 * n.c, partial + (i * 2 + 1) * n.c, dz ? dz + from : NULL, dy + from, x + from,
                  skip ? skip + from : NULL, channels_at(arrays, bias, b.sample, n.c), b.rows, n.c, n.relu);
    });
    add_blocks(sums, partial, variance, all, n);
    spread_sums(arrays, sums, variance, weight, n);
    const float *source = dz ? dz : dy;  // dz is masked already
    const int relu = n.relu && !dz;
    if (!relu) skip = NULL;
    PARTS(all.count, 1, 12 * n.b * n.p * n.c, for (size_t i = at.from; i < at.from + at.n; i++) {
        struct block b = block_at(all, n, i);
        size_t from = b.from * n.c;
        spread_rows(dx + from, source + from, x + from, skip ? skip + from : NULL, channels_at(arrays, bias, b.sample, n.c),
                  b.rows, n.c, relu);
    });
    return 0;
}

static size_t clip(size_t at, size_t padding, size_t limit) {
    size_t beyond = at < padding ? 0 : at - padding;
    return beyond < limit ? beyond : limit;
}

static struct window window_at(struct pool p, size_t row, size_t column) {
    row *= p.stride;
    column *= p.stride;
    return (struct window){clip(row, p.padding, p.height), clip(row + p.kernel, p.padding, p.height),
                           clip(column, p.padding, p.width), clip(column + p.kernel, p.padding, p.width), p.width};
}

static void max_pool(struct avg_device *d, float *y, const float *x, struct pool p) {
    const size_t image = p.height * p.width * p.c;
    PARTS(p.b * p.oh, 1, 4 * p.b * image, for (size_t i = at.from; i < at.from + at.n; i++)
          for (size_t column = 0; column < p.ow; column++)
              window_max(y + (i * p.ow + column) * p.c, x + i / p.oh * image, window_at(p, i % p.oh, column), p.c););
}

static void max_pool_backward(struct avg_device *d, float *dx, const float *dy, const float *x, struct pool p) {
    const size_t image = p.height * p.width * p.c;
    PARTS(p.b, 1, 12 * p.b * image, for (size_t b = at.from; b < at.from + at.n; b++) {
        memset(dx + b * image, 0, image * sizeof *dx);
        for (size_t i = 0; i < p.oh * p.ow; i++)
            window_max_backward(dx + b * image, dy + (b * p.oh * p.ow + i) * p.c, x + b * image,
                                 window_at(p, i / p.ow, i % p.ow), p.c);
    });
}

static void average_pool(struct avg_device *d, float *y, const float *x, size_t b, size_t p, size_t c) {
    PARTS(b, 1, 4 * b * p * c, for (size_t i = at.from; i < at.from + at.n; i++)
          average_rows(y + i * c, x + i * p * c, p, c););
}

static void average_pool_backward(struct avg_device *d, float *dx, const float *dy, size_t b, size_t p, size_t c) {
    const float share = 1 / (float)p;
    PARTS(b * p, 1, 4 * b * p * c, for (size_t i = at.from; i < at.from + at.n; i++)
          scaled(dx + i * c, dy + i / p * c, share, c););
}
