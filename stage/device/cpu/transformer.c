//go:build onednn && cgo && linux && amd64

#include "transformer_ops.h"

#include "parts.h"

void avg_dropout(struct avg_device *d, void *y, const void *x, size_t runs, size_t copies, size_t n, uint64_t first,
                 struct dropout o, int bf16) {
    if (copies == 1) {  // one long run
        n *= runs;
        runs = 1;
    }
    for (size_t run = 0; run < runs; run++) {
        size_t from = run * copies * n;
        uint64_t draw = first + run * n;
        if (bf16)
            PARTS(n, 4 * LINE, 4 * copies * n,
                  d->kernels->transformer.dropout_bf16((uint16_t *)y + from + at.from, (const uint16_t *)x + from + at.from,
                                                       at.n, copies, n, draw + at.from, o););
        else
            PARTS(n, 4 * LINE, 8 * copies * n,
                  d->kernels->transformer.dropout((float *)y + from + at.from, (const float *)x + from + at.from, at.n,
                                                  copies, n, draw + at.from, o););
    }
}
