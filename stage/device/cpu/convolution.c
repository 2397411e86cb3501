//go:build onednn && cgo && linux && amd64

#include <omp.h>
#include <stdlib.h>

#include "device.h"

// Images lie with their channels last and weights in PyTorch's order, as device.Convolution says. oneDNN may want the weights
// in another order: a reorder packs them before the product, or unpacks and adds their gradient after it. Where the processor's bf16 units
// are slow (avg_bf16_units), that reorder also widens bf16 weights, and images in bf16 are widened to scratch memory.
struct avg_convolution {
    struct avg_convolution_shape shape;
    dnnl_primitive_t primitive, reorder;
    dnnl_memory_t x, y, weight, packed, bias, scratch;
    size_t packed_bytes, scratch_bytes, wide_x, wide_y;  // the latter two: floats that images in bf16 are widened to
    const char *implementation;
};

struct descriptions {
    dnnl_memory_desc_t x, y, weight, any, bias;
};

// describe gives the operands of one form. What it multiplies is in bf16 where s says so: the weights as they are given, and what the
// primitive takes where it has units for them.
static dnnl_status_t describe(struct descriptions *m, const struct avg_convolution_shape *s, int form, int units) {
    dnnl_dims_t x = {s->b, s->in, s->height, s->width}, y = {s->b, s->out, s->oh, s->ow};
    dnnl_dims_t weight = {s->out, s->in, s->kernel, s->kernel}, bias = {s->out};
    const dnnl_data_type_t given = s->bf16 ? dnnl_bf16 : dnnl_f32, taken = units ? given : dnnl_f32;
    const int gradient = form == AVG_BACKWARD_WEIGHT;
    dnnl_status_t status = dnnl_memory_desc_init_by_tag(&m->x, 4, x, form == AVG_BACKWARD ? dnnl_f32 : taken, dnnl_nhwc);
    if (status == dnnl_success)
        status = dnnl_memory_desc_init_by_tag(&m->y, 4, y, form == AVG_FORWARD ? dnnl_f32 : taken, dnnl_nhwc);
    if (status == dnnl_success)
        status = dnnl_memory_desc_init_by_tag(&m->weight, 4, weight, gradient ? dnnl_f32 : given, dnnl_oihw);
    if (status == dnnl_success)
        status = dnnl_memory_desc_init_by_tag(&m->any, 4, weight, gradient ? dnnl_f32 : taken, dnnl_format_tag_any);
    if (status == dnnl_success) status = dnnl_memory_desc_init_by_tag(&m->bias, 1, bias, dnnl_f32, dnnl_a);
    return status;
}

// attributes asks for scratch memory of the caller's, and for a reorder whose result is added where `sum` is.
static dnnl_status_t attributes(dnnl_primitive_attr_t *attr, int sum) {
    dnnl_status_t status = dnnl_primitive_attr_create(attr);
    if (status != dnnl_success) return status;
    status = dnnl_primitive_attr_set_scratchpad_mode(*attr, dnnl_scratchpad_mode_user);
    if (status != dnnl_success || !sum) return status;
    dnnl_post_ops_t ops;
    status = dnnl_post_ops_create(&ops);
    if (status != dnnl_success) return status;
    status = dnnl_post_ops_append_sum(ops, 1);
    if (status == dnnl_success) status = dnnl_primitive_attr_set_post_ops(*attr, ops);
    dnnl_post_ops_destroy(ops);
    return status;
}

// choose makes the descriptor of the primitive. A backward is chosen with its forward as a hint.
static dnnl_status_t choose(dnnl_primitive_desc_t *desc, struct avg_device *d, const struct avg_convolution_shape *s,
                            const struct descriptions *m, dnnl_primitive_attr_t attr) {
    dnnl_dims_t strides = {s->stride, s->stride}, padding = {s->padding, s->padding};
    dnnl_convolution_desc_t forward, backward;
    struct descriptions f;
    dnnl_status_t status = describe(&f, s, AVG_FORWARD, d->bf16_units);
    if (status != dnnl_success) return status;
    status = dnnl_convolution_forward_desc_init(&forward, dnnl_forward_training, dnnl_convolution_direct, &f.x, &f.any,
                                                s->bias ? &f.bias : NULL, &f.y, strides, padding, padding);
    if (status != dnnl_success) return status;
    dnnl_primitive_desc_t hint;
    status = dnnl_primitive_desc_create(&hint, &forward, attr, d->engine, NULL);
    if (status != dnnl_success) return status;
    if (s->form == AVG_FORWARD) {
        *desc = hint;
        return dnnl_success;
    }
    if (s->form == AVG_BACKWARD)
        status = dnnl_convolution_backward_data_desc_init(&backward, dnnl_convolution_direct, &m->x, &m->any, &m->y, strides,
                                                          padding, padding);
    else
        status = dnnl_convolution_backward_weights_desc_init(&backward, dnnl_convolution_direct, &m->x, &m->any, NULL, &m->y,
                                                             strides, padding, padding);
    if (status == dnnl_success) status = dnnl_primitive_desc_create(desc, &backward, attr, d->engine, hint);
    dnnl_primitive_desc_destroy(hint);
    return status;
}

static dnnl_status_t make_reorder(struct avg_device *d, struct avg_convolution *c, const dnnl_memory_desc_t *plain,
                                  const dnnl_memory_desc_t *packed) {
    const int gradient = c->shape.form == AVG_BACKWARD_WEIGHT;
    dnnl_primitive_attr_t attr = NULL;
    dnnl_primitive_desc_t desc = NULL;
    dnnl_status_t status = attributes(&attr, gradient);
    if (status == dnnl_success)
        status = dnnl_reorder_primitive_desc_create(&desc, gradient ? packed : plain, d->engine, gradient ? plain : packed,
                                                    d->engine, attr);
    if (status == dnnl_success) status = dnnl_primitive_create(&c->reorder, desc);
    if (status == dnnl_success) {
        // The reorder never runs beside the product: they share the scratch memory.
        size_t bytes = dnnl_memory_desc_get_size(dnnl_primitive_desc_query_md(desc, dnnl_query_scratchpad_md, 0));
        if (bytes > 0) status = dnnl_unimplemented;
    }
    if (desc) dnnl_primitive_desc_destroy(desc);
    if (attr) dnnl_primitive_attr_destroy(attr);
    return status;
}

static dnnl_status_t make_memories(struct avg_device *d, struct avg_convolution *c, dnnl_primitive_desc_t desc,
                                   const struct descriptions *m) {
    const int gradient = c->shape.form == AVG_BACKWARD_WEIGHT;
    const dnnl_memory_desc_t *packed =
        dnnl_primitive_desc_query_md(desc, gradient ? dnnl_query_diff_weights_md : dnnl_query_weights_md, 0);
    const dnnl_memory_desc_t *scratch = dnnl_primitive_desc_query_md(desc, dnnl_query_scratchpad_md, 0);
    c->scratch_bytes = dnnl_memory_desc_get_size(scratch);
    struct {
        dnnl_memory_t *memory;
        const dnnl_memory_desc_t *desc;
    } all[] = {{&c->x, &m->x}, {&c->y, &m->y}, {&c->weight, &m->weight}, {&c->packed, packed}, {&c->scratch, scratch},
               {&c->bias, &m->bias}};
    dnnl_status_t status = dnnl_success;
    for (size_t i = 0; i < sizeof all / sizeof *all && status == dnnl_success; i++)
        status = dnnl_memory_create(all[i].memory, all[i].desc, d->engine, DNNL_MEMORY_NONE);
    if (status != dnnl_success || (!gradient && dnnl_memory_desc_equal(packed, &m->weight))) return status;
    c->packed_bytes = (dnnl_memory_desc_get_size(packed) + 63) / 64 * 64;
    return make_reorder(d, c, &m->weight, packed);
}

int avg_convolution_new(struct avg_device *d, struct avg_convolution_shape s, struct avg_convolution **convolution) {
    omp_set_num_threads(d->threads);  // a primitive divides its work when it is created
    struct avg_convolution *c = calloc(1, sizeof *c);
    if (!c) return dnnl_out_of_memory;
    c->shape = s;
    struct descriptions m;
    dnnl_primitive_attr_t attr = NULL;
    dnnl_primitive_desc_t desc = NULL;
    dnnl_status_t status = describe(&m, &s, s.form, d->bf16_units);
    if (s.bf16 && !d->bf16_units && s.form != AVG_BACKWARD) c->wide_x = (size_t)(s.b * s.height * s.width * s.in);
    if (s.bf16 && !d->bf16_units && s.form != AVG_FORWARD) c->wide_y = (size_t)(s.b * s.oh * s.ow * s.out);
    if (status == dnnl_success) status = attributes(&attr, 0);
    if (status == dnnl_success) status = choose(&desc, d, &s, &m, attr);
    if (status == dnnl_success) status = dnnl_primitive_create(&c->primitive, desc);
    if (status == dnnl_success)
        status = dnnl_primitive_desc_query(desc, dnnl_query_impl_info_str, 0, (void *)&c->implementation);
    if (status == dnnl_success) status = make_memories(d, c, desc, &m);
    if (desc) dnnl_primitive_desc_destroy(desc);
    if (attr) dnnl_primitive_attr_destroy(attr);
    if (status != dnnl_success) {
        avg_convolution_free(c);
        c = NULL;
    }
    *convolution = c;
    return status;
}

void avg_convolution_free(struct avg_convolution *c) {
    dnnl_memory_t memories[] = {c->x, c->y, c->weight, c->packed, c->bias, c->scratch};
    for (size_t i = 0; i < sizeof memories / sizeof *memories; i++)
        if (memories[i]) dnnl_memory_destroy(memories[i]);
    if (c->primitive) dnnl_primitive_destroy(c->primitive);
    if (c->reorder) dnnl_primitive_destroy(c->reorder);
    free(c);
}

const char *avg_convolution_implementation(const struct avg_convolution *c) { return c->implementation; }

// repack runs the reorder, from the plain weights or from the packed gradient.
static dnnl_status_t repack(struct avg_device *d, struct avg_convolution *c) {
    const int gradient = c->shape.form == AVG_BACKWARD_WEIGHT;
    dnnl_exec_arg_t args[] = {
        {DNNL_ARG_FROM, gradient ? c->packed : c->weight},
        {DNNL_ARG_TO, gradient ? c->weight : c->packed},
    };
    return dnnl_primitive_execute(c->reorder, d->stream, 2, args);
}

// widened is an image as the primitive takes it: itself, or where n is not 0 its n elements as floats, at the end of what *wide has left.
static void *widened(struct avg_device *d, void *image, size_t n, float **wide) {
    if (n == 0) return image;
    *wide -= (n + 15) / 16 * 16;
    avg_convert(d, (struct elements){*wide, 0}, (struct elements){image, 1}, n);
    return *wide;
}

// oneDNN does not write through the handles of sources.
int avg_convolution_run(struct avg_device *d, struct avg_convolution *c, void *y, void *x, void *weight,
                        const float *bias) {
    static const int arguments[][3] = {
        [AVG_FORWARD] = {DNNL_ARG_DST, DNNL_ARG_SRC, DNNL_ARG_WEIGHTS},
        [AVG_BACKWARD] = {DNNL_ARG_DIFF_DST, DNNL_ARG_DIFF_SRC, DNNL_ARG_WEIGHTS},
        [AVG_BACKWARD_WEIGHT] = {DNNL_ARG_DIFF_DST, DNNL_ARG_SRC, DNNL_ARG_DIFF_WEIGHTS},
    };
    const size_t lines = (c->wide_x + 15) / 16 + (c->wide_y + 15) / 16, own = (c->packed_bytes + c->scratch_bytes + 63) / 64 * 64;
    char *scratch = avg_reserve(d, own + 64 * lines + 64);
    if (!scratch) return dnnl_out_of_memory;
    float *wide = (float *)(scratch + own + 64 * lines);
    omp_set_num_threads(d->threads);
    dnnl_memory_set_data_handle(c->x, widened(d, x, c->wide_x, &wide));
    dnnl_memory_set_data_handle(c->y, widened(d, y, c->wide_y, &wide));
    dnnl_memory_set_data_handle(c->weight, weight);
    dnnl_memory_set_data_handle(c->packed, c->reorder ? (void *)scratch : weight);
    dnnl_memory_set_data_handle(c->scratch, scratch + c->packed_bytes);
    dnnl_memory_set_data_handle(c->bias, (void *)bias);
    dnnl_status_t status = dnnl_success;
    const int gradient = c->shape.form == AVG_BACKWARD_WEIGHT;
    if (c->reorder && !gradient) status = repack(d, c);
    const int *names = arguments[c->shape.form];
    dnnl_exec_arg_t args[] = {
        {names[0], c->y}, {names[1], c->x}, {names[2], c->packed}, {DNNL_ARG_SCRATCHPAD, c->scratch}, {DNNL_ARG_BIAS, c->bias},
    };
    if (status == dnnl_success) status = dnnl_primitive_execute(c->primitive, d->stream, c->shape.bias ? 5 : 4, args);
    if (status == dnnl_success && gradient) status = repack(d, c);
    return status;
}
