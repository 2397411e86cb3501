// What one thread runs of the operations of convolutional networks. One table per instruction set. Images lie with their
// channels last, so that an operation works on rows of `c` channels.
#ifndef AVG_VISION_H
#define AVG_VISION_H

#include <stddef.h>

#include "device.h"

// Per channel of one sample, (C) each: what a norm multiplies and adds.
struct channels {
    const float *mean, *scale, *bias;  // scale is weight * rstd
    const float *offset, *slope;       // of the backward: dx = scale dz + offset + slope (x - mean)
};

// A window of a pool: rows [top, bottom) and columns [left, right) of an image `width` pixels wide.
struct window {
    size_t top, bottom, left, right, width;
};

struct vision_kernels {
    // Of `rows` rows: how far each channel's mean lies from its origin, and the sum of the squares of the differences from that mean.
    // Elements that are all nearly the same keep their differences where the origin is one of them.
    void (*moments)(float *mean, float *squares, const float *x, const float *origins, size_t rows, size_t c);
    // merge makes statistics (groups) of one sample of the moments of its `blocks` blocks, (blocks,2,C), which have `rows`
    // rows each but for the last: p in all. channels (2,C) is scratch.
    void (*merge)(float *mean, float *variance, double *channels, const float *moments, const float *origins, size_t blocks,
                  size_t rows, size_t p, size_t c, size_t groups);
    // skip may be NULL.
    void (*normalize)(float *y, const float *x, const float *skip, struct channels n, size_t rows, size_t c, int relu);
    // masked sums the gradient before the ReLU, dz, and dz (x - mean) over the rows. dz may be NULL.
    void (*masked)(float *first, float *second, float *dz, const float *dy, const float *x, const float *skip,
                   struct channels n, size_t rows, size_t c, int relu);
    void (*spread)(float *dx, const float *dy, const float *x, const float *skip, struct channels n, size_t rows, size_t c,
                   int relu);

    void (*relu)(float *y, const float *x, size_t n);
    void (*relu_backward)(float *dx, const float *dy, const float *x, size_t n);
    void (*max_pool)(float *y, const float *image, struct window w, size_t c);
    void (*max_pool_backward)(float *dimage, const float *dy, const float *image, struct window w, size_t c);
    void (*average)(float *y, const float *x, size_t rows, size_t c);
    void (*scaled)(float *y, const float *x, float a, size_t n);
};

extern const struct vision_kernels avg_vision_avx512, avg_vision_avx2, avg_vision_sse2;

// Memory that the operations below work in. It belongs to one device and grows to the largest operation seen.
struct avg_vision {
    float *scratch;
    size_t scratch_bytes;
};

void avg_vision_close(struct avg_vision *v);
// avg_vision_reserve returns memory of at least `bytes`, aligned to 64, or NULL.
void *avg_vision_reserve(struct avg_vision *v, size_t bytes);

struct group_norm {
    size_t b, p, c, groups;
    float epsilon;
    int relu;
};

struct pool {
    size_t b, height, width, c, oh, ow, kernel, stride, padding;
};

// These return 0, or -1 when there is no memory for scratch. The operands are those of device.Vision in Go.
int avg_group_moments(struct avg_device *d, struct avg_vision *v, float *mean, float *variance, const float *x,
                      struct group_norm n);
int avg_group_norm(struct avg_device *d, struct avg_vision *v, float *y, const float *x, const float *skip,
                   const float *mean, const float *variance, const float *weight, const float *bias, struct group_norm n);
int avg_group_norm_backward(struct avg_device *d, struct avg_vision *v, float *dx, float *dz, float *sums, const float *dy,
                            const float *x, const float *skip, const float *mean, const float *variance,
                            const float *weight, const float *bias, struct group_norm n);

void avg_relu(struct avg_device *d, float *y, const float *x, size_t n);
void avg_relu_backward(struct avg_device *d, float *dx, const float *dy, const float *x, size_t n);
void avg_max_pool(struct avg_device *d, float *y, const float *x, struct pool p);
void avg_max_pool_backward(struct avg_device *d, float *dx, const float *dy, const float *x, struct pool p);
void avg_average_pool(struct avg_device *d, float *y, const float *x, size_t b, size_t p, size_t c);
void avg_average_pool_backward(struct avg_device *d, float *dx, const float *dy, size_t b, size_t p, size_t c);
void avg_transpose(struct avg_device *d, float *y, const float *x, size_t n, size_t rows, size_t columns);

// A convolution is one of its three forms as a oneDNN primitive of fixed shape.
enum avg_form { AVG_FORWARD, AVG_BACKWARD, AVG_BACKWARD_WEIGHT };
struct avg_convolution_shape {
    int64_t b, height, width, in, out, oh, ow, kernel, stride, padding;
    int form, bias, bf16;  // bf16: what the form multiplies; its result is float
};
struct avg_convolution;

// These return 0, or a oneDNN status. x is the side of the input, y that of the output: each the operand or its gradient.
int avg_convolution_new(struct avg_device *d, struct avg_convolution_shape s, struct avg_convolution **convolution);
int avg_convolution_run(struct avg_device *d, struct avg_vision *v, struct avg_convolution *c, void *y, void *x, void *weight,
                        const float *bias);
void avg_convolution_free(struct avg_convolution *c);
const char *avg_convolution_implementation(const struct avg_convolution *c);

#endif
