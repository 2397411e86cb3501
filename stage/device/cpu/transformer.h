// What one thread runs of the operations that draw and of those for transformers; see kernels.h.
#ifndef AVG_TRANSFORMER_H
#define AVG_TRANSFORMER_H

#include <stddef.h>
#include <stdint.h>

// Elements whose draw lies below threshold are dropped, the others scaled.
struct dropout {
    uint64_t key;
    uint32_t threshold;
    float scale;
};

// Rotary position embedding of rows (heads,s); row r is at position r % t. table (t,s) holds for each position s/2 cosines,
// then s/2 sines.
struct rotation {
    const float *table;
    size_t t, heads, s;
    int inverse;
};

// Operands of type void are floats, or bfloat16 numbers when bf16 is not 0. from and row say where in them to begin.
struct transformer_kernels {
    // `copies` runs of n elements, `stride` apart, that share the draws first, first + 1, ...
    void (*dropout)(void *y, const void *x, size_t n, size_t copies, size_t stride, uint64_t first, struct dropout d, int bf16);

    void (*rms_norm)(void *y, float *rstd, const float *x, const float *weight, size_t rows, size_t columns, float epsilon,
                     int bf16);
    void (*rms_norm_backward)(float *dx, const void *dy, const float *x, const float *rstd, const float *weight, const float *plus,
                              size_t rows, size_t columns, int bf16);

    void (*rotate)(void *y, const void *x, const struct rotation *o, size_t row, size_t rows, int bf16);

    void (*swiglu)(void *y, const void *gate, const void *up, size_t from, size_t n, int bf16);
    void (*swiglu_backward)(void *dgate, void *dup, const void *dy, const void *gate, const void *up, size_t from, size_t n,
                            int bf16);
    void (*gelu_erf)(void *y, const void *x, size_t from, size_t n, int bf16);
    void (*gelu_erf_backward)(void *dx, const void *dy, const void *x, size_t from, size_t n, int bf16);
    void (*tanhs)(float *y, const float *x, size_t n);
    void (*tanh_backward)(float *dx, const float *dy, const float *y, size_t n);
};

#endif
