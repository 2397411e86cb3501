//go:build onednn && cgo && linux && amd64

#include "decode_ops.h"

#include <string.h>

#include "parts.h"

// start fills y (rows,n) with what a product is added to.
static void start(struct avg_device *d, const struct few_rows *p, float *y, size_t from, size_t rows) {
    for (size_t r = 0; r < rows; r++, y += p->n) {
        if (p->accumulate)
            d->kernels->convert(y, (const float *)p->c.data + (from + r) * p->n, 0, p->n, 0, 0);
        else if (p->bias)
            memcpy(y, p->bias, p->n * sizeof *y);
        else
            memset(y, 0, p->n * sizeof *y);
    }
}

// Each row of C is summed up in scratch, so that one that is bf16 is rounded once.
int avg_few_rows(struct avg_device *d, struct few_rows p) {
    if (avg_reserve(d, MOST_ROWS * (p.k + p.n))) return -1;
    float *a = d->scratch, *y = a + MOST_ROWS * p.k;
    const size_t bytes = p.n * p.k * (p.b.bf16 ? 2 : 4);
    for (size_t from = 0; from < p.m; from += MOST_ROWS) {
        const size_t rows = p.m - from < MOST_ROWS ? p.m - from : MOST_ROWS;
        d->kernels->convert(a, (const char *)p.a.data + from * p.k * (p.a.bf16 ? 2 : 4), 0, rows * p.k, 0, p.a.bf16);
        start(d, &p, y, from, rows);
        PARTS(p.n, LINE, bytes, if (p.transposed) {
            d->kernels->decode.by_transposed(y + at.from, p.n, a, p.b.data, rows, p.k, at.from, at.n, p.b.bf16);
        } else {
            d->kernels->decode.by_matrix(y + at.from, p.n, a, p.b.data, rows, p.k, at.from, at.n, p.n, p.b.bf16);
        });
        d->kernels->convert((char *)p.c.data + from * p.n * (p.c.bf16 ? 2 : 4), y, 0, rows * p.n, p.c.bf16, 0);
    }
    return 0;
}

int avg_cached_attention(struct avg_device *d, struct cached_attention x) {
    const size_t size = x.bf16 ? 2 : 4, heads = x.b * x.h, width = x.h * x.s, keys = x.past + x.t;
    const size_t floats = (x.s + keys + LINE - 1) / LINE * LINE;
    if (avg_reserve(d, floats * (size_t)d->threads)) return -1;
    PARTS(heads, 1, 2 * heads * keys * x.s * size, for (size_t index = at.from; index < at.from + at.n; index++) {
        const size_t b = index / x.h, head = index % x.h, cache = (b * x.kv + head / (x.h / x.kv)) * x.capacity * x.s * size;
        for (size_t row = b * x.t, seen = x.past + 1; seen <= keys; row++, seen++) {
            const struct cached c = {
                .q = x.q + (row * x.q_stride + head * x.s) * size, .k = x.k + cache, .v = x.v + cache,
                .out = x.out + (row * width + head * x.s) * size, .s = x.s, .seen = seen,
                .low = x.window && seen > x.window ? seen - x.window : 0, .bf16 = x.bf16,
            };
            d->kernels->decode.cached(&c, d->scratch + (size_t)omp_get_thread_num() * floats);
        }
    });
    return 0;
}

void avg_cache_append(struct avg_device *d, char *cache, const char *x, size_t b, size_t t, size_t kv, size_t s, size_t stride, size_t capacity,
                      size_t past, size_t size) {
    PARTS(b * kv, 1, 2 * b * kv * t * s * size, for (size_t head = at.from; head < at.from + at.n; head++) {
        char *to = cache + (head * capacity + past) * s * size;
        const char *from = x + (head / kv * t * stride + head % kv * s) * size;
        for (size_t r = 0; r < t; r++, to += s * size, from += stride * size) memcpy(to, from, s * size);
    });
}
