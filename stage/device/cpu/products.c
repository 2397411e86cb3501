//go:build onednn && cgo && linux && amd64

#include <omp.h>
#include <stdlib.h>

#include "device.h"

struct avg_product {
    dnnl_primitive_t primitive;
    dnnl_memory_t a, b, c, bias, scratch;
    size_t scratch_bytes;
    const char *implementation;
};

// matrix describes (rows, columns), stored as it is or transposed.
static dnnl_status_t matrix(dnnl_memory_desc_t *desc, int64_t rows, int64_t columns, int transposed) {
    dnnl_dims_t dims = {rows, columns};
    dnnl_dims_t plain = {columns, 1}, swapped = {1, rows};
    return dnnl_memory_desc_init_by_strides(desc, 2, dims, dnnl_f32, transposed ? swapped : plain);
}

// attributes asks for scratch memory of the caller's and, to accumulate, for C to be added.
static dnnl_status_t attributes(dnnl_primitive_attr_t *attr, int accumulate) {
    dnnl_status_t status = dnnl_primitive_attr_create(attr);
    if (status != dnnl_success) return status;
    status = dnnl_primitive_attr_set_scratchpad_mode(*attr, dnnl_scratchpad_mode_user);
    if (status != dnnl_success || !accumulate) return status;
    dnnl_post_ops_t sum;
    status = dnnl_post_ops_create(&sum);
    if (status != dnnl_success) return status;
    status = dnnl_post_ops_append_sum(sum, 1);
    if (status == dnnl_success) status = dnnl_primitive_attr_set_post_ops(*attr, sum);
    dnnl_post_ops_destroy(sum);
    return status;
}

// build fills p from a primitive descriptor.
static dnnl_status_t build(struct avg_device *d, struct avg_product *p, dnnl_primitive_desc_t desc,
                           const dnnl_memory_desc_t operands[4], int bias) {
    dnnl_status_t status = dnnl_primitive_create(&p->primitive, desc);
    dnnl_memory_t *memories[4] = {&p->a, &p->b, &p->c, &p->bias};
    for (int i = 0; i < 3 + bias && status == dnnl_success; i++)
        status = dnnl_memory_create(memories[i], &operands[i], d->engine, DNNL_MEMORY_NONE);
    if (status != dnnl_success) return status;
    const dnnl_memory_desc_t *scratch = dnnl_primitive_desc_query_md(desc, dnnl_query_scratchpad_md, 0);
    p->scratch_bytes = dnnl_memory_desc_get_size(scratch);
    status = dnnl_memory_create(&p->scratch, scratch, d->engine, DNNL_MEMORY_NONE);
    if (status != dnnl_success || p->scratch_bytes <= d->product_scratch_bytes) return status;
    void *grown = avg_allocate(p->scratch_bytes);
    if (!grown) return dnnl_out_of_memory;
    if (d->product_scratch) avg_free(d->product_scratch, d->product_scratch_bytes);
    d->product_scratch = grown;
    d->product_scratch_bytes = p->scratch_bytes;
    return dnnl_success;
}

int avg_product_new(struct avg_device *d, int64_t m, int64_t n, int64_t k, int flags, struct avg_product **product) {
    omp_set_num_threads(d->threads);  // a primitive divides its work when it is created
    dnnl_memory_desc_t operands[4];
    int bias = (flags & AVG_BIAS) != 0;
    dnnl_status_t status = matrix(&operands[0], m, k, flags & AVG_TRANS_A);
    if (status == dnnl_success) status = matrix(&operands[1], k, n, flags & AVG_TRANS_B);
    if (status == dnnl_success) status = matrix(&operands[2], m, n, 0);
    if (status == dnnl_success) status = matrix(&operands[3], 1, n, 0);
    dnnl_matmul_desc_t operation;
    if (status == dnnl_success)
        status = dnnl_matmul_desc_init(&operation, &operands[0], &operands[1], bias ? &operands[3] : NULL, &operands[2]);
    if (status != dnnl_success) return status;
    dnnl_primitive_attr_t attr = NULL;
    dnnl_primitive_desc_t desc = NULL;
    struct avg_product *p = calloc(1, sizeof *p);
    status = p ? attributes(&attr, flags & AVG_ACCUMULATE) : dnnl_out_of_memory;
    if (status == dnnl_success) status = dnnl_primitive_desc_create(&desc, &operation, attr, d->engine, NULL);
    if (status == dnnl_success)
        status = dnnl_primitive_desc_query(desc, dnnl_query_impl_info_str, 0, (void *)&p->implementation);
    if (status == dnnl_success) status = build(d, p, desc, operands, bias);
    if (desc) dnnl_primitive_desc_destroy(desc);
    if (attr) dnnl_primitive_attr_destroy(attr);
    if (status != dnnl_success && p) avg_product_free(p);
    *product = status == dnnl_success ? p : NULL;
    return status;
}

void avg_product_free(struct avg_product *p) {
    dnnl_memory_t memories[] = {p->a, p->b, p->c, p->bias, p->scratch};
    for (size_t i = 0; i < sizeof memories / sizeof *memories; i++)
        if (memories[i]) dnnl_memory_destroy(memories[i]);
    if (p->primitive) dnnl_primitive_destroy(p->primitive);
    free(p);
}

const char *avg_product_implementation(const struct avg_product *p) { return p->implementation; }

// oneDNN does not write through the handles of sources.
int avg_product_run(struct avg_device *d, struct avg_product *p, float *c, const float *a, const float *b, const float *bias) {
    omp_set_num_threads(d->threads);
    dnnl_memory_set_data_handle(p->a, (void *)a);
    dnnl_memory_set_data_handle(p->b, (void *)b);
    dnnl_memory_set_data_handle(p->c, c);
    dnnl_memory_set_data_handle(p->scratch, d->product_scratch);
    if (p->bias) dnnl_memory_set_data_handle(p->bias, (void *)bias);
    dnnl_exec_arg_t args[] = {
        {DNNL_ARG_SRC, p->a},
        {DNNL_ARG_WEIGHTS, p->b},
        {DNNL_ARG_DST, p->c},
        {DNNL_ARG_SCRATCHPAD, p->scratch},
        {DNNL_ARG_BIAS, p->bias},
    };
    return dnnl_primitive_execute(p->primitive, d->stream, p->bias ? 5 : 4, args);
}
