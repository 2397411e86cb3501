//go:build onednn && cgo && linux && amd64

#include <omp.h>
#include <stdlib.h>

#include "primitives.h"

// Images lie with their channels last and weights in PyTorch's order, as device.Convolution says. oneDNN may want the weights
// in another order: a reorder packs them before the product, or unpacks and adds their gradient after it. Where the processor's bf16 units
// are slow (bf16_units), reorders also widen what is multiplied and in bf16.

// The operands of a form, in the order of avg_primitive_run.
enum { X, WEIGHT, Y, CHANNELS, DESCRIPTIONS };

static const struct avg_product forms[] = {
    [AVG_FORWARD] = {.names = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST}, .result = Y},
    [AVG_BACKWARD] = {.names = {DNNL_ARG_DIFF_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DIFF_DST}, .result = X},
    [AVG_BACKWARD_WEIGHT] = {.names = {DNNL_ARG_SRC, DNNL_ARG_DIFF_WEIGHTS, DNNL_ARG_DIFF_DST}, .result = WEIGHT, .adds = 1},
};

// describe gives the operands of one form, which multiplies bf16 or floats, with the weights in an order.
static dnnl_status_t describe(dnnl_memory_desc_t m[DESCRIPTIONS], const struct avg_convolution_shape *s, int form, int bf16,
                              dnnl_format_tag_t order) {
    dnnl_dims_t x = {s->b, s->in, s->height, s->width}, y = {s->b, s->out, s->oh, s->ow};
    dnnl_dims_t weight = {s->out, s->in, s->kernel, s->kernel}, bias = {s->out};
    const dnnl_data_type_t type = bf16 ? dnnl_bf16 : dnnl_f32;
    dnnl_status_t status = dnnl_memory_desc_init_by_tag(&m[X], 4, x, form == AVG_BACKWARD ? dnnl_f32 : type, dnnl_nhwc);
    TRY(dnnl_memory_desc_init_by_tag(&m[Y], 4, y, form == AVG_FORWARD ? dnnl_f32 : type, dnnl_nhwc));
    TRY(dnnl_memory_desc_init_by_tag(&m[WEIGHT], 4, weight, form == AVG_BACKWARD_WEIGHT ? dnnl_f32 : type, order));
    TRY(dnnl_memory_desc_init_by_tag(&m[CHANNELS], 1, bias, dnnl_f32, dnnl_a));
    return status;
}

// create fills p. A backward is chosen with its forward as a hint.
static dnnl_status_t create(struct avg_device *d, struct avg_product *p, const struct avg_convolution_shape *s) {
    const int units = s->bf16 && d->bf16_units;
    dnnl_dims_t strides = {s->stride, s->stride}, padding = {s->padding, s->padding};
    dnnl_memory_desc_t f[DESCRIPTIONS], m[DESCRIPTIONS], given[DESCRIPTIONS];
    dnnl_convolution_desc_t operation;
    dnnl_primitive_desc_t hint = NULL;
    dnnl_status_t status = describe(f, s, AVG_FORWARD, units, dnnl_format_tag_any);
    TRY(describe(m, s, s->form, units, dnnl_format_tag_any));
    TRY(describe(given, s, s->form, s->bf16, dnnl_oihw));
    TRY(dnnl_convolution_forward_desc_init(&operation, dnnl_forward_training, dnnl_convolution_direct, &f[X], &f[WEIGHT],
                                           s->bias ? &f[CHANNELS] : NULL, &f[Y], strides, padding, padding));
    if (s->form != AVG_FORWARD) TRY(avg_describe(d, &hint, &operation, NULL, 0));
    if (s->form == AVG_BACKWARD)
        TRY(dnnl_convolution_backward_data_desc_init(&operation, dnnl_convolution_direct, &m[X], &m[WEIGHT], &m[Y], strides, padding, padding));
    if (s->form == AVG_BACKWARD_WEIGHT)
        TRY(dnnl_convolution_backward_weights_desc_init(&operation, dnnl_convolution_direct, &m[X], &m[WEIGHT], NULL, &m[Y], strides, padding,
                                                        padding));
    TRY(avg_primitive_create(d, p, &operation, hint, 0, given, s->bias ? &m[CHANNELS] : NULL));
    dnnl_primitive_desc_destroy(hint);
    return status;
}

int avg_convolution_new(struct avg_device *d, struct avg_convolution_shape s, struct avg_product **product) {
    omp_set_num_threads(d->threads);  // a primitive divides its work when it is created
    struct avg_product *p = calloc(1, sizeof *p);
    if (!p) return dnnl_out_of_memory;
    *p = forms[s.form];
    return avg_made(p, create(d, p, &s), product);
}
