// What one thread runs of the operations that continue sequences by one position or a few; see kernels.h.
#ifndef AVG_DECODE_H
#define AVG_DECODE_H

#include <stddef.h>

// The most rows of A that the products below take at once: each element of B is read once for all of them.
enum { MOST_ROWS = 4 };

// One query head over `seen` cached keys and values, each row of s elements after the one before; keys before `low` are not seen.
struct cached {
    const void *q, *k, *v;
    void *out;
    size_t s, low, seen;
    int bf16;  // what all of them are; else float
};

struct decode_kernels {
    // y (rows,n), y_stride apart, += a (rows,k) b, for n columns of b (k,stride) from column `from` on. b is bf16 where the flag says so.
    void (*by_matrix)(float *y, size_t y_stride, const float *a, const void *b, size_t rows, size_t k, size_t from, size_t n, size_t stride,
                      int bf16);
    // The same for n rows of b (n,k) from row `from` on, transposed.
    void (*by_transposed)(float *y, size_t y_stride, const float *a, const void *b, size_t rows, size_t k, size_t from, size_t n, int bf16);
    // scratch holds `seen` and s floats.
    void (*cached)(const struct cached *c, float *scratch);
};

#endif
