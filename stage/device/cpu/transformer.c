//go:build onednn && cgo && linux && amd64

#include "transformer_ops.h"

#include "parts.h"

// size is that of an element.
static size_t size(int bf16) { return bf16 ? 2 : sizeof(float); }

void avg_dropout(struct avg_device *d, void *y, const void *x, size_t runs, size_t copies, size_t n, uint64_t first,
                 struct dropout o, int bf16) {
    if (copies == 1) {  // one long run
        n *= runs;
        runs = 1;
    }
    for (size_t run = 0; run < runs; run++) {
        char *to = (char *)y + run * copies * n * size(bf16);
        const char *from = (const char *)x + run * copies * n * size(bf16);
        uint64_t draw = first + run * n;
        PARTS(n, 4 * LINE, 8 * copies * n,
              d->kernels->transformer.dropout(to + at.from * size(bf16), from + at.from * size(bf16), at.n, copies, n,
                                              draw + at.from, o, bf16););
    }
}

void avg_rms_norm(struct avg_device *d, void *y, float *rstd, const float *x, const float *weight, size_t rows, size_t columns,
                  float epsilon, int bf16) {
    PARTS(rows, 1, 8 * rows * columns,
          d->kernels->transformer.rms_norm((char *)y + at.from * columns * size(bf16), rstd + at.from, x + at.from * columns,
                                           weight, at.n, columns, epsilon, bf16););
}

void avg_rms_norm_backward(struct avg_device *d, float *dx, const void *dy, const float *x, const float *rstd,
                           const float *weight, const float *plus, size_t rows, size_t columns, int bf16) {
    PARTS(rows, 1, 12 * rows * columns,
          d->kernels->transformer.rms_norm_backward(dx + at.from * columns,
                                                    (const char *)dy + at.from * columns * size(bf16),
                                                    x + at.from * columns, rstd + at.from, weight,
                                                    plus ? plus + at.from * columns : NULL, at.n, columns, bf16););
}

void avg_rotate(struct avg_device *d, void *y, const void *x, struct rotation o, const float *table, size_t rows, int bf16) {
    o.table = table;
    PARTS(rows, 1, 8 * rows * o.heads * o.s, d->kernels->transformer.rotate(y, x, &o, at.from, at.n, bf16););
}

void avg_swiglu(struct avg_device *d, void *y, const void *gate, const void *up, size_t n, int bf16) {
    PARTS(n, 2 * LINE, 20 * n, d->kernels->transformer.swiglu(y, gate, up, at.from, at.n, bf16););
}

void avg_swiglu_backward(struct avg_device *d, void *dgate, void *dup, const void *dy, const void *gate, const void *up,
                         size_t n, int bf16) {
    PARTS(n, 2 * LINE, 28 * n, d->kernels->transformer.swiglu_backward(dgate, dup, dy, gate, up, at.from, at.n, bf16););
}

void avg_gelu_erf(struct avg_device *d, void *y, const void *x, size_t n, int bf16) {
    PARTS(n, 2 * LINE, 16 * n, d->kernels->transformer.gelu_erf(y, x, at.from, at.n, bf16););
}

void avg_gelu_erf_backward(struct avg_device *d, void *dx, const void *dy, const void *x, size_t n, int bf16) {
    PARTS(n, 2 * LINE, 24 * n, d->kernels->transformer.gelu_erf_backward(dx, dy, x, at.from, at.n, bf16););
}

void avg_tanh(struct avg_device *d, float *y, const float *x, size_t n) {
    PARTS(n, LINE, 16 * n, d->kernels->transformer.tanhs(y + at.from, x + at.from, at.n););
}

void avg_tanh_backward(struct avg_device *d, float *dx, const float *dy, const float *y, size_t n) {
    PARTS(n, LINE, 12 * n, d->kernels->transformer.tanh_backward(dx + at.from, dy + at.from, y + at.from, at.n););
}

void avg_add_rows(struct avg_device *d, float *y, const float *table, const int32_t *ids, size_t rows, size_t width) {
    PARTS(rows, 1, 12 * rows * width, for (size_t r = at.from; r < at.from + at.n; r++)
          d->kernels->add(y + r * width, y + r * width, table + (size_t)ids[r] * width, width););
}
