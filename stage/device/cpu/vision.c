//go:build onednn && cgo && linux && amd64

#include "vision.h"

#include <math.h>
#include <string.h>

#include "parts.h"

static const struct vision_kernels *kernels_of(const struct avg_device *d) {
    if (d->kernels == &avg_kernels_avx512) return &avg_vision_avx512;
    if (d->kernels == &avg_kernels_avx2) return &avg_vision_avx2;
    return &avg_vision_sse2;
}

void avg_vision_close(struct avg_vision *v) {
    if (v->scratch) avg_free(v->scratch, v->scratch_bytes);
    memset(v, 0, sizeof *v);
}

void *avg_vision_reserve(struct avg_vision *v, size_t bytes) {
    if (bytes <= v->scratch_bytes) return v->scratch;
    float *grown = avg_allocate(bytes);
    if (!grown) return NULL;
    avg_vision_close(v);
    v->scratch = grown;
    v->scratch_bytes = bytes;
    return grown;
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

int avg_group_moments(struct avg_device *d, struct avg_vision *v, float *mean, float *variance, const float *x,
                      struct group_norm n) {
    const struct vision_kernels *k = kernels_of(d);
    const struct blocks all = blocks_of(n);
    double *channels = avg_vision_reserve(v, 2 * n.c * sizeof(double) + all.count * 2 * n.c * sizeof(float));
    if (!channels) return -1;
    float *moments = (float *)(channels + 2 * n.c);
    PARTS(all.count, 1, 4 * n.b * n.p * n.c, for (size_t i = at.from; i < at.from + at.n; i++) {
        struct block b = block_at(all, n, i);
        k->moments(moments + i * 2 * n.c, moments + (i * 2 + 1) * n.c, x + b.from * n.c, x + b.sample * n.p * n.c, b.rows, n.c);
    });
    for (size_t s = 0; s < n.b; s++)
        k->merge(mean + s * n.groups, variance + s * n.groups, channels, moments + s * all.of_sample * 2 * n.c,
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

int avg_group_norm(struct avg_device *d, struct avg_vision *v, float *y, const float *x, const float *skip,
                   const float *mean, const float *variance, const float *weight, const float *bias, struct group_norm n) {
    const struct blocks all = blocks_of(n);
    float *arrays = avg_vision_reserve(v, n.b * ARRAYS * n.c * sizeof(float));
    if (!arrays) return -1;
    spread_statistics(arrays, mean, variance, weight, n);
    const struct vision_kernels *k = kernels_of(d);
    PARTS(all.count, 1, 8 * n.b * n.p * n.c, for (size_t i = at.from; i < at.from + at.n; i++) {
        struct block b = block_at(all, n, i);
        size_t from = b.from * n.c;
        k->normalize(y + from, x + from, skip ? skip + from : NULL, channels_at(arrays, bias, b.sample, n.c), b.rows, n.c,
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

int avg_group_norm_backward(struct avg_device *d, struct avg_vision *v, float *dx, float *dz, float *sums, const float *dy,
                            const float *x, const float *skip, const float *mean, const float *variance,
                            const float *weight, const float *bias, struct group_norm n) {
    const struct blocks all = blocks_of(n);
    float *arrays = avg_vision_reserve(v, (n.b * ARRAYS + all.count * 2) * n.c * sizeof(float));
    if (!arrays) return -1;
    float *partial = arrays + n.b * ARRAYS * n.c;
    spread_statistics(arrays, mean, variance, weight, n);
    const struct vision_kernels *k = kernels_of(d);
    PARTS(all.count, 1, 8 * n.b * n.p * n.c, for (size_t i = at.from; i < at.from + at.n; i++) {
        struct block b = block_at(all, n, i);
        size_t from = b.from * n.c;
        k->masked(partial + i * 2 * n.c, partial + (i * 2 + 1) * n.c, dz ? dz + from : NULL, dy + from, x + from,
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
        k->spread(dx + from, source + from, x + from, skip ? skip + from : NULL, channels_at(arrays, bias, b.sample, n.c),
                  b.rows, n.c, relu);
    });
    return 0;
}

void avg_relu(struct avg_device *d, float *y, const float *x, size_t n) {
    const struct vision_kernels *k = kernels_of(d);
    PARTS(n, LINE, 8 * n, k->relu(y + at.from, x + at.from, at.n););
}

void avg_relu_backward(struct avg_device *d, float *dx, const float *dy, const float *x, size_t n) {
    const struct vision_kernels *k = kernels_of(d);
    PARTS(n, LINE, 12 * n, k->relu_backward(dx + at.from, dy + at.from, x + at.from, at.n););
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

void avg_max_pool(struct avg_device *d, float *y, const float *x, struct pool p) {
    const struct vision_kernels *k = kernels_of(d);
    const size_t image = p.height * p.width * p.c;
    PARTS(p.b * p.oh, 1, 4 * p.b * image, for (size_t i = at.from; i < at.from + at.n; i++)
          for (size_t column = 0; column < p.ow; column++)
              k->max_pool(y + (i * p.ow + column) * p.c, x + i / p.oh * image, window_at(p, i % p.oh, column), p.c););
}

void avg_max_pool_backward(struct avg_device *d, float *dx, const float *dy, const float *x, struct pool p) {
    const struct vision_kernels *k = kernels_of(d);
    const size_t image = p.height * p.width * p.c;
    PARTS(p.b, 1, 12 * p.b * image, for (size_t b = at.from; b < at.from + at.n; b++) {
        memset(dx + b * image, 0, image * sizeof *dx);
        for (size_t i = 0; i < p.oh * p.ow; i++)
            k->max_pool_backward(dx + b * image, dy + (b * p.oh * p.ow + i) * p.c, x + b * image,
                                 window_at(p, i / p.ow, i % p.ow), p.c);
    });
}

void avg_average_pool(struct avg_device *d, float *y, const float *x, size_t b, size_t p, size_t c) {
    const struct vision_kernels *k = kernels_of(d);
    PARTS(b, 1, 4 * b * p * c, for (size_t i = at.from; i < at.from + at.n; i++)
          k->average(y + i * c, x + i * p * c, p, c););
}

void avg_average_pool_backward(struct avg_device *d, float *dx, const float *dy, size_t b, size_t p, size_t c) {
    const struct vision_kernels *k = kernels_of(d);
    const float share = 1 / (float)p;
    PARTS(b * p, 1, 4 * b * p * c, for (size_t i = at.from; i < at.from + at.n; i++)
          k->scaled(dx + i * c, dy + i / p * c, share, c););
}

// Tiles keep both sides in the first-level cache.
void avg_transpose(struct avg_device *d, float *y, const float *x, size_t n, size_t rows, size_t columns) {
    enum { TILE = 32 };
    const size_t bands = (rows + TILE - 1) / TILE;
    PARTS(n * bands, 1, 8 * n * rows * columns, for (size_t i = at.from; i < at.from + at.n; i++) {
        const float *from = x + i / bands * rows * columns;
        float *to = y + i / bands * rows * columns;
        const size_t r0 = i % bands * TILE, r1 = r0 + TILE < rows ? r0 + TILE : rows;
        for (size_t c0 = 0; c0 < columns; c0 += TILE)
            for (size_t c = c0; c < c0 + TILE && c < columns; c++)
                for (size_t r = r0; r < r1; r++) to[c * rows + r] = from[r * columns + c];
    });
}
