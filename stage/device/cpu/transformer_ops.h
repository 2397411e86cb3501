// The operations of transformer.h on a whole device; see device.h.
#ifndef AVG_TRANSFORMER_OPS_H
#define AVG_TRANSFORMER_OPS_H

#include "device.h"

// `runs` runs of n elements, each with `copies` rows of n elements that share the draws first + run * n + 0, 1, ...; of
// bfloat16 numbers when bf16 is not 0.
void avg_dropout(struct avg_device *d, void *y, const void *x, size_t runs, size_t copies, size_t n, uint64_t first,
                 struct dropout o, int bf16);

// The rest are the operations of device.Transformers in Go, in that order. Operands of type void are of bfloat16 numbers when
// bf16 is not 0.
void avg_rms_norm(struct avg_device *d, void *y, float *rstd, const float *x, const float *weight, size_t rows, size_t columns,
                  float epsilon, int bf16);
void avg_rms_norm_backward(struct avg_device *d, float *dx, const void *dy, const float *x, const float *rstd,
                           const float *weight, const float *plus, size_t rows, size_t columns, int bf16);
void avg_rotate(struct avg_device *d, void *y, const void *x, struct rotation o, const float *table, size_t rows, int bf16);
void avg_swiglu(struct avg_device *d, void *y, const void *gate, const void *up, size_t n, int bf16);
void avg_swiglu_backward(struct avg_device *d, void *dgate, void *dup, const void *dy, const void *gate, const void *up,
                         size_t n, int bf16);
void avg_gelu_erf(struct avg_device *d, void *y, const void *x, size_t n, int bf16);
void avg_gelu_erf_backward(struct avg_device *d, void *dx, const void *dy, const void *x, size_t n, int bf16);
void avg_tanh(struct avg_device *d, float *y, const float *x, size_t n);
void avg_tanh_backward(struct avg_device *d, float *dx, const float *dy, const float *y, size_t n);
void avg_add_rows(struct avg_device *d, float *y, const float *table, const int32_t *ids, size_t rows, size_t width);

#endif
