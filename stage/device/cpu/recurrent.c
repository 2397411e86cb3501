//go:build onednn && cgo && linux && amd64

#include <omp.h>
#include <stdlib.h>

#include "device.h"

// memory makes a oneDNN memory with memory of its own.
static dnnl_status_t memory(struct avg_device *d, const dnnl_memory_desc_t *desc, dnnl_memory_t *m, void **own, size_t *bytes) {
    *bytes = dnnl_memory_desc_get_size(desc);
    if (*bytes > 0 && !(*own = avg_allocate(*bytes))) return dnnl_out_of_memory;
    return dnnl_memory_create(m, desc, d->engine, *own);
}

// step_build makes the product, and the reorder of its weights from how `plain` describes them.
static dnnl_status_t step_build(struct avg_device *d, struct step *s, dnnl_primitive_desc_t desc,
                                const dnnl_memory_desc_t *plain) {
    const dnnl_memory_desc_t *a = dnnl_primitive_desc_query_md(desc, dnnl_query_src_md, 0);
    const dnnl_memory_desc_t *weights = dnnl_primitive_desc_query_md(desc, dnnl_query_weights_md, 0);
    const dnnl_memory_desc_t *c = dnnl_primitive_desc_query_md(desc, dnnl_query_dst_md, 0);
    const dnnl_memory_desc_t *scratch = dnnl_primitive_desc_query_md(desc, dnnl_query_scratchpad_md, 0);
    dnnl_primitive_desc_t reorder = NULL;
    dnnl_status_t status = dnnl_primitive_create(&s->product, desc);
    if (status == dnnl_success) status = dnnl_memory_create(&s->a, a, d->engine, DNNL_MEMORY_NONE);
    if (status == dnnl_success) status = dnnl_memory_create(&s->c, c, d->engine, DNNL_MEMORY_NONE);
    if (status == dnnl_success) status = dnnl_memory_create(&s->plain, plain, d->engine, DNNL_MEMORY_NONE);
    if (status == dnnl_success) status = memory(d, weights, &s->weights, &s->packed, &s->packed_bytes);
    if (status == dnnl_success) status = memory(d, scratch, &s->scratch, &s->scratch_memory, &s->scratch_bytes);
    if (status == dnnl_success)
        status = dnnl_reorder_primitive_desc_create(&reorder, plain, d->engine, weights, d->engine, NULL);
    if (status == dnnl_success) status = dnnl_primitive_create(&s->reorder, reorder);
    if (reorder) dnnl_primitive_desc_destroy(reorder);
    return status;
}

// step_new makes a product of l whose weights come as W (columns,inner) or, transposed, as W^T.
static dnnl_status_t step_new(struct avg_device *d, const struct avg_lstm *l, struct step *s, int64_t inner, int64_t columns,
                              int transposed) {
    const dnnl_data_type_t given = l->bf16 ? dnnl_bf16 : dnnl_f32, taken = l->units ? dnnl_bf16 : dnnl_f32;
    const int64_t rows = (int64_t)l->b;
    dnnl_dims_t a_dims = {rows, inner}, weight_dims = {inner, columns}, c_dims = {rows, columns};
    dnnl_dims_t as_is = {columns, 1}, turned = {1, inner};
    dnnl_memory_desc_t a, weights, plain, c;
    dnnl_status_t status = dnnl_memory_desc_init_by_tag(&a, 2, a_dims, taken, dnnl_ab);
    if (status == dnnl_success) status = dnnl_memory_desc_init_by_tag(&weights, 2, weight_dims, taken, dnnl_format_tag_any);
    if (status == dnnl_success)
        status = dnnl_memory_desc_init_by_strides(&plain, 2, weight_dims, given, transposed ? turned : as_is);
    if (status == dnnl_success) status = dnnl_memory_desc_init_by_tag(&c, 2, c_dims, dnnl_f32, dnnl_ab);
    dnnl_matmul_desc_t operation;
    if (status == dnnl_success) status = dnnl_matmul_desc_init(&operation, &a, &weights, NULL, &c);
    dnnl_primitive_attr_t attr = NULL;
    dnnl_primitive_desc_t desc = NULL;
    if (status == dnnl_success) status = dnnl_primitive_attr_create(&attr);
    if (status == dnnl_success) status = dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user);
    if (status == dnnl_success) status = dnnl_primitive_desc_create(&desc, &operation, attr, d->engine, NULL);
    if (status == dnnl_success) status = step_build(d, s, desc, &plain);
    if (desc) dnnl_primitive_desc_destroy(desc);
    if (attr) dnnl_primitive_attr_destroy(attr);
    return status;
}

static void step_free(struct step *s) {
    dnnl_memory_t memories[] = {s->a, s->plain, s->weights, s->c, s->scratch};
    for (size_t i = 0; i < sizeof memories / sizeof *memories; i++)
        if (memories[i]) dnnl_memory_destroy(memories[i]);
    if (s->product) dnnl_primitive_destroy(s->product);
    if (s->reorder) dnnl_primitive_destroy(s->reorder);
    if (s->packed) avg_free(s->packed, s->packed_bytes);
    if (s->scratch_memory) avg_free(s->scratch_memory, s->scratch_bytes);
}

// oneDNN does not write through the handles of sources.
dnnl_status_t avg_step_pack(struct avg_device *d, struct step *s, const void *weights) {
    dnnl_memory_set_data_handle(s->plain, (void *)weights);
    dnnl_exec_arg_t args[] = {{DNNL_ARG_FROM, s->plain}, {DNNL_ARG_TO, s->weights}};
    return dnnl_primitive_execute(s->reorder, d->stream, 2, args);
}

dnnl_status_t avg_step_run(struct avg_device *d, struct step *s, float *c, const void *a) {
    dnnl_memory_set_data_handle(s->a, (void *)a);
    dnnl_memory_set_data_handle(s->c, c);
    dnnl_exec_arg_t args[] = {
        {DNNL_ARG_SRC, s->a},
        {DNNL_ARG_WEIGHTS, s->weights},
        {DNNL_ARG_DST, s->c},
        {DNNL_ARG_SCRATCHPAD, s->scratch},
    };
    return dnnl_primitive_execute(s->product, d->stream, 4, args);
}

int avg_lstm_new(struct avg_device *d, size_t b, size_t t, size_t h, int bf16, struct avg_lstm **lstm) {
    omp_set_num_threads(d->threads);  // a primitive divides its work when it is created
    struct avg_lstm *l = calloc(1, sizeof *l);
    if (!l) return dnnl_out_of_memory;
    l->b = b, l->t = t, l->h = h, l->bf16 = bf16, l->units = bf16 && d->bf16_units;
    l->state = avg_allocate(b * h * sizeof(float));
    l->gates = avg_allocate(4 * b * h * sizeof(float));
    if (bf16) l->rounded = avg_allocate(4 * b * h * sizeof *l->rounded);
    dnnl_status_t status = l->state && l->gates && (!bf16 || l->rounded) ? dnnl_success : dnnl_out_of_memory;
    int64_t cells = (int64_t)h;
    if (status == dnnl_success) status = step_new(d, l, &l->forward, cells, 4 * cells, 1);
    if (status == dnnl_success) status = step_new(d, l, &l->backward, 4 * cells, cells, 0);
    if (status != dnnl_success) {
        avg_lstm_free(l);
        l = NULL;
    }
    *lstm = l;
    return status;
}

void avg_lstm_free(struct avg_lstm *l) {
    step_free(&l->forward);
    step_free(&l->backward);
    if (l->state) avg_free(l->state, l->b * l->h * sizeof(float));
    if (l->gates) avg_free(l->gates, 4 * l->b * l->h * sizeof(float));
    if (l->rounded) avg_free(l->rounded, 4 * l->b * l->h * sizeof *l->rounded);
    free(l);
}
