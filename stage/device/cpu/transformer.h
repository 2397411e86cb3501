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

struct transformer_kernels {
    // `copies` runs of n elements, `stride` apart, that share the draws first, first + 1, ...
    void (*dropout)(float *y, const float *x, size_t n, size_t copies, size_t stride, uint64_t first, struct dropout d);
    void (*dropout_bf16)(uint16_t *y, const uint16_t *x, size_t n, size_t copies, size_t stride, uint64_t first,
                         struct dropout d);
};

#endif
