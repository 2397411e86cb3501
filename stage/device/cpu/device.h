// One function per operation of device.Device that computes on the processor. Operands have been checked by the caller.
#ifndef AVG_DEVICE_H
#define AVG_DEVICE_H

#include <dnnl.h>

#include "kernels.h"

// A device belongs to one goroutine at a time. Every operation sets the number of OpenMP threads of the calling OS thread
// first, so that it does not matter which one calls.
struct avg_device {
    const struct kernels *kernels;
    int threads;
    int bf16_units;  // avg_bf16_units
    int bf16_pairs;  // avg_bf16_pairs
    float *scratch;  // of attention: what all threads need
    size_t scratch_bytes;
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    void *product_scratch;  // as much as the largest product needs
    size_t product_scratch_bytes;
};

// avg_open returns 0, or the oneDNN status. avg_close frees what avg_open and the operations allocated.
int avg_open(struct avg_device *d, int threads);
void avg_close(struct avg_device *d);

// avg_kernels returns the kernels of an instruction set by name ("avx512", "avx2", "sse2"), or NULL when the processor
// lacks it; with a NULL name the best that it has.
const struct kernels *avg_kernels(const char *name);

// avg_bf16_units reports whether products of bf16 operands are faster in the processor's bf16 units than in those for floats. It
// depends on the kind of processor alone: what a job computes must not depend on a measurement.
int avg_bf16_units(void);

// avg_bf16_pairs reports whether the instruction that multiplies pairs of bf16 (VDPBF16PS) is faster than that for floats, by the same rule.
int avg_bf16_pairs(void);

// avg_denormals makes the calling thread, and those that it starts, keep numbers below 1.2e-38 or take them for 0. It reports whether
// the thread kept them. Go keeps them and relies on nobody changing that; libraries do, also for threads that they did not start.
int avg_denormals(int keep);

// avg_allocate returns zeroed memory at a multiple of 64 bytes, in huge pages where it is large, or NULL.
void *avg_allocate(size_t bytes);
void avg_free(void *memory, size_t bytes);

// avg_reserve makes room for `floats` of scratch. It returns 0, or -1.
int avg_reserve(struct avg_device *d, size_t floats);

// A product is a oneDNN matrix product of fixed shape. flags are ORed.
enum { AVG_TRANS_A = 1, AVG_TRANS_B = 2, AVG_ACCUMULATE = 4, AVG_BIAS = 8, AVG_BF16_A = 16, AVG_BF16_B = 32, AVG_BF16_C = 64 };
struct avg_product;
int avg_product_new(struct avg_device *d, int64_t m, int64_t n, int64_t k, int flags, struct avg_product **product);
void avg_product_free(struct avg_product *p);
int avg_product_run(struct avg_device *d, struct avg_product *p, void *c, const void *a, const void *b, const float *bias);
const char *avg_product_implementation(const struct avg_product *p);

// A gradient of a weight is a product C (m,n) = [C +] A^T B with A (k,m) and B (k,n), both float or both bf16. avg_gradient needs
// avg_gradient_scratch bytes, and a processor whose bf16_units are AVX-512's.
struct gradient {
    float *c;
    const void *a, *b;
    size_t m, n, k;
    int accumulate, bf16;
};
size_t avg_gradient_scratch(const struct avg_device *d, struct gradient g);
void avg_gradient(struct avg_device *d, struct gradient g, void *scratch);

// An operand whose elements are float or bf16.
struct elements {
    void *data;
    int bf16;
};

void avg_scale(struct avg_device *d, float *x, float a, size_t n);
void avg_copy(struct avg_device *d, char *y, const char *x, size_t bytes);
void avg_zero(struct avg_device *d, char *x, size_t bytes);
void avg_axpy(struct avg_device *d, float *y, float a, const float *x, size_t n);
void avg_lerp(struct avg_device *d, float *y, float a, const float *x, size_t n);
void avg_mul(struct avg_device *d, float *y, const float *x, size_t n);
void avg_add(struct avg_device *d, struct elements out, struct elements a, struct elements b, size_t n);
void avg_convert(struct avg_device *d, struct elements y, struct elements x, size_t n);
void avg_squared_norm(struct avg_device *d, double *total, const float *x, size_t n);
void avg_sum_rows(struct avg_device *d, float *sum, struct elements x, size_t rows, size_t columns);
void avg_gelu(struct avg_device *d, struct elements y, struct elements x, size_t n);
void avg_gelu_backward(struct avg_device *d, struct elements dx, struct elements dy, struct elements x, size_t n);
void avg_layer_norm(struct avg_device *d, struct elements y, float *mean, float *rstd, const float *x, const float *weight,
                    const float *bias, size_t rows, size_t columns, float epsilon);
void avg_layer_norm_backward(struct avg_device *d, float *dx, struct elements dy, const float *x, const float *mean,
                             const float *rstd, const float *weight, const float *plus, size_t rows, size_t columns);
void avg_norm_backward_weight(struct avg_device *d, float *dweight, float *dbias, struct elements dy, const float *x,
                              const float *mean, const float *rstd, size_t rows, size_t columns);
void avg_embed(struct avg_device *d, float *out, const float *tokens, const float *positions, const int32_t *ids,
               size_t rows, size_t t, size_t width);
void avg_embed_backward(struct avg_device *d, float *dtokens, float *dpositions, const float *dout, const int32_t *ids,
                        size_t rows, size_t t, size_t width);
void avg_cross_entropy(struct avg_device *d, float *losses, float *dlogits, const float *logits, const int32_t *targets,
                       size_t rows, size_t vocabulary, float scale);
void avg_adam(struct avg_device *d, float *p, float *m, float *v, struct stepped s, size_t n, struct adam a);
void avg_sgd(struct avg_device *d, float *p, float *m, struct stepped s, size_t n, struct sgd a);

// Operands and shape of an attention as device.Attention has them. All but lse and mask are bf16 or float. Absent ones are
// NULL: the backward's in a forward, lse when no backward follows, mask.
struct attention {
    char *out, *dq, *dk, *dv;
    const char *q, *k, *v, *dout;
    float *lse;
    const int32_t *mask;
    size_t b, t, h, kv, s, q_stride, kv_stride;
    size_t window;  // positions that a query sees at most; 0: all before it
    int bf16, bidirectional;
    struct dropout dropout;  // of probabilities; none when its threshold is 0
    uint64_t first;          // the draw of the first
};

// These return 0, or -1 when there is no memory for scratch. The backward only reads out and lse.
int avg_attention(struct avg_device *d, struct attention x);
int avg_attention_backward(struct avg_device *d, struct attention x);

#endif
