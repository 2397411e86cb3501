// The operations of transformer.h on a whole device; see device.h.
#ifndef AVG_TRANSFORMER_OPS_H
#define AVG_TRANSFORMER_OPS_H

#include "device.h"

// `runs` runs of n elements, each with `copies` rows of n elements that share the draws first + run * n + 0, 1, ...; of
// bfloat16 numbers when bf16 is not 0.
void avg_dropout(struct avg_device *d, void *y, const void *x, size_t runs, size_t copies, size_t n, uint64_t first,
                 struct dropout o, int bf16);

#endif
