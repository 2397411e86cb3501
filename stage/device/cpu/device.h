// A device, what it keeps, and the functions that Go calls. Operands have been checked by the caller.
#ifndef AVG_DEVICE_H
#define AVG_DEVICE_H

#include <dnnl.h>
#include <stddef.h>
#include <stdint.h>

#include "operands.h"

#ifdef __clang__
#pragma STDC FP_CONTRACT OFF  // Clang fuses even in strict ISO mode, GCC does not
#endif

struct kernels;

// A device belongs to one goroutine at a time. Every operation sets the number of OpenMP threads of the calling OS thread
// first, so that it does not matter which one calls.
struct avg_device {
    const struct kernels *kernels;
    int threads;
    // Whether products of bf16 operands are faster in the processor's bf16 units than in those for floats, and whether the instruction that
    // multiplies pairs of bf16 (VDPBF16PS) is. The kind of processor alone decides: what a job computes must not depend on a measurement.
    int bf16_units, bf16_pairs;
    void *scratch;   // what the running operation works in: as much as the largest so far needed
    size_t scratch_bytes;
    dnnl_engine_t engine;
    dnnl_stream_t stream;
};

// avg_open returns 0, or the oneDNN status. avg_close frees what avg_open and the operations allocated.
int avg_open(struct avg_device *d, int threads);
void avg_close(struct avg_device *d);

// avg_kernels returns the kernels of an instruction set by name ("avx512", "avx2", "sse2"), or NULL when the processor
// lacks it; with a NULL name the best that it has.
const struct kernels *avg_kernels(const char *name);

// avg_denormals makes the calling thread, and those that it starts, keep numbers below 1.2e-38 or take them for 0. It reports whether
// the thread kept them. Go keeps them and relies on nobody changing that; libraries do, also for threads that they did not start.
int avg_denormals(int keep);

// avg_allocate returns zeroed memory at a multiple of 64 bytes, in huge pages where it is large, or NULL.
void *avg_allocate(size_t bytes);
void avg_free(void *memory, size_t bytes);

// avg_reserve returns the device's scratch memory, of at least so many bytes, or NULL. What it held is lost where it grows.
void *avg_reserve(struct avg_device *d, size_t bytes);

// A product is a oneDNN primitive of fixed shape: of matrices, or a convolution. flags are ORed. AVG_PACK_B: B is packed for several runs;
// those that follow the first, with no other operation between, are given NULL for B.
enum {
    AVG_TRANS_A = 1, AVG_TRANS_B = 2, AVG_ACCUMULATE = 4, AVG_BIAS = 8, AVG_BF16_A = 16, AVG_BF16_B = 32, AVG_BF16_C = 64, AVG_PACK_B = 128,
};
struct avg_product;
// These return 0, or a oneDNN status.
int avg_product_new(struct avg_device *d, int64_t m, int64_t n, int64_t k, int flags, struct avg_product **product);
void avg_product_free(struct avg_product *p);
int avg_product_run(struct avg_device *d, struct avg_product *p, void *c, const void *a, const void *b, const float *bias);
const char *avg_product_implementation(const struct avg_product *p);

// A convolution is a product in one of three forms, of c the side of the output, a that of the input and b the weights: each the operand or its
// gradient.
enum avg_form { AVG_FORWARD, AVG_BACKWARD, AVG_BACKWARD_WEIGHT };
struct avg_convolution_shape {
    int64_t b, height, width, in, out, oh, ow, kernel, stride, padding;
    int form, bias, bf16;  // bf16: what the form multiplies; its result is float
};
int avg_convolution_new(struct avg_device *d, struct avg_convolution_shape s, struct avg_product **product);

// The products of an LSTM's positions, for one shape: h W^T of one position of all samples, and the gradient that goes back.
// The weights are laid out once per pass, as the products like them, for all positions; the other operands are gathered
// without gaps, since oneDNN's faster products ask for that. Its own LSTM has no masks; it is within a tenth of this at
// widths that are multiples of 16 and half as fast at others (1150, the width of AWD-LSTM).
//
// With weights in bf16 what is multiplied by them is rounded to bf16 first. Where the processor's units for it are slow (bf16_units), both
// are then multiplied as floats.
struct avg_lstm {
    size_t b, t, h;
    int bf16, units;  // the weights are bf16; the products take bf16
    struct avg_product *forward, *backward;
    float *state, *gates;  // (B,H) and (B,4H), without gaps
    uint16_t *rounded;     // (B,4H) bf16: what is multiplied
};
int avg_lstm_new(struct avg_device *d, size_t b, size_t t, size_t h, int bf16, struct avg_lstm **lstm);
void avg_lstm_free(struct avg_lstm *l);

// Operations that no instruction set matters to.
void avg_move(struct avg_device *d, char *y, const char *x, size_t bytes);
void avg_zero(struct avg_device *d, char *x, size_t bytes);
void avg_transpose(struct avg_device *d, float *y, const float *x, size_t n, size_t rows, size_t columns);
// Rows of `kv` heads of s elements of `size` bytes, `stride` elements apart, to positions past, ... of a cache (b,kv,capacity,s).
void avg_cache_append(struct avg_device *d, char *cache, const char *x, size_t b, size_t t, size_t kv, size_t s, size_t stride, size_t capacity,
                      size_t past, size_t size);

// The kernels of an instruction set, and avg_NAME, which runs that of the device's, for every operation of operations.h.
#define OPERATION(result, name, parameters, arguments) result(*name) parameters;
struct kernels {
    const char *name;
#include "operations.h"
};
#undef OPERATION
extern const struct kernels avg_kernels_avx512, avg_kernels_avx2, avg_kernels_sse2;

#define OPERATION(result, name, parameters, arguments) \
    static inline result avg_##name parameters { return d->kernels->name arguments; }
#include "operations.h"
#undef OPERATION

#endif
