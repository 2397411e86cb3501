//go:build onednn && cgo && linux && amd64

#include <omp.h>
#include <stdlib.h>

#include "primitives.h"

// attributes says whose scratch memory is taken and, to accumulate, that the result is added to what is there.
static dnnl_status_t attributes(dnnl_primitive_attr_t *attr, dnnl_scratchpad_mode_t scratch, int accumulate) {
    dnnl_post_ops_t sum = NULL;
    dnnl_status_t status = dnnl_primitive_attr_create(attr);
    TRY(dnnl_primitive_attr_set_scratchpad_mode(*attr, scratch));
    if (!accumulate) return status;
    TRY(dnnl_post_ops_create(&sum));
    TRY(dnnl_post_ops_append_sum(sum, 1));
    TRY(dnnl_primitive_attr_set_post_ops(*attr, sum));
    dnnl_post_ops_destroy(sum);
    return status;
}

dnnl_status_t avg_describe(struct avg_device *d, dnnl_primitive_desc_t *desc, const void *operation, const_dnnl_primitive_desc_t hint,
                           int accumulate) {
    dnnl_primitive_attr_t attr = NULL;
    dnnl_status_t status = attributes(&attr, dnnl_scratchpad_mode_user, accumulate);
    TRY(dnnl_primitive_desc_create(desc, operation, attr, d->engine, hint));
    dnnl_primitive_attr_destroy(attr);
    return status;
}

static dnnl_status_t reorder(struct avg_device *d, dnnl_primitive_t *primitive, const dnnl_memory_desc_t *from, const dnnl_memory_desc_t *to,
                             int accumulate) {
    dnnl_primitive_attr_t attr = NULL;
    dnnl_primitive_desc_t desc = NULL;
    dnnl_status_t status = attributes(&attr, dnnl_scratchpad_mode_library, accumulate);
    TRY(dnnl_reorder_primitive_desc_create(&desc, from, d->engine, to, d->engine, attr));
    TRY(dnnl_primitive_create(primitive, desc));
    dnnl_primitive_desc_destroy(desc);
    dnnl_primitive_attr_destroy(attr);
    return status;
}

// take makes a memory in scratch, at a multiple of 64 bytes.
static dnnl_status_t take(struct avg_device *d, struct avg_product *p, int i, const dnnl_memory_desc_t *desc) {
    p->offsets[i] = p->scratch_bytes;
    p->scratch_bytes += (dnnl_memory_desc_get_size(desc) + 63) / 64 * 64;
    return dnnl_memory_create(&p->taken[i], desc, d->engine, DNNL_MEMORY_NONE);
}

// operand makes the memory of an operand: the caller's or, where the primitive takes it otherwise, in scratch.
static dnnl_status_t operand(struct avg_device *d, struct avg_product *p, int i, const dnnl_memory_desc_t *given, const dnnl_memory_desc_t *wanted) {
    const int result = i == p->result, adds = result && p->adds;
    if (!adds && dnnl_memory_desc_equal(given, wanted)) return dnnl_memory_create(&p->taken[i], wanted, d->engine, DNNL_MEMORY_NONE);
    dnnl_status_t status = take(d, p, i, wanted);
    TRY(dnnl_memory_create(&p->given[i], given, d->engine, DNNL_MEMORY_NONE));
    TRY(reorder(d, &p->reorders[i], result ? wanted : given, result ? given : wanted, adds));
    return status;
}

dnnl_status_t avg_primitive_create(struct avg_device *d, struct avg_product *p, const void *operation, const_dnnl_primitive_desc_t hint,
                                   int accumulate, const dnnl_memory_desc_t given[OPERANDS], const dnnl_memory_desc_t *bias) {
    dnnl_primitive_desc_t desc = NULL;
    dnnl_status_t status = avg_describe(d, &desc, operation, hint, accumulate);
    TRY(dnnl_primitive_desc_query(desc, dnnl_query_impl_info_str, 0, (void *)&p->implementation));
    TRY(dnnl_primitive_create(&p->compute, desc));
    for (int i = 0; i < OPERANDS; i++)
        TRY(operand(d, p, i, &given[i], dnnl_primitive_desc_query_md(desc, dnnl_query_exec_arg_md, p->names[i])));
    if (bias) TRY(dnnl_memory_create(&p->taken[BIAS], bias, d->engine, DNNL_MEMORY_NONE));
    TRY(take(d, p, SCRATCH, dnnl_primitive_desc_query_md(desc, dnnl_query_scratchpad_md, 0)));
    TRY(avg_reserve(d, p->scratch_bytes) ? dnnl_success : dnnl_out_of_memory);
    dnnl_primitive_desc_destroy(desc);
    return status;
}

// oneDNN ignores what is NULL.
void avg_product_free(struct avg_product *p) {
    if (!p) return;
    for (int i = 0; i < MEMORIES; i++) dnnl_memory_destroy(p->taken[i]);
    for (int i = 0; i < OPERANDS; i++) dnnl_memory_destroy(p->given[i]);
    for (int i = 0; i < OPERANDS; i++) dnnl_primitive_destroy(p->reorders[i]);
    dnnl_primitive_destroy(p->compute);
    free(p);
}

int avg_made(struct avg_product *p, dnnl_status_t status, struct avg_product **product) {
    if (status != dnnl_success) avg_product_free(p);
    *product = status == dnnl_success ? p : NULL;
    return status;
}

const char *avg_product_implementation(const struct avg_product *p) { return p->implementation; }

static dnnl_status_t run_reorder(struct avg_device *d, dnnl_primitive_t primitive, dnnl_memory_t from, dnnl_memory_t to) {
    dnnl_exec_arg_t args[] = {{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, to}};
    return dnnl_primitive_execute(primitive, d->stream, 2, args);
}

// oneDNN does not write through the handles of sources.
dnnl_status_t avg_primitive_run(struct avg_device *d, struct avg_product *p, const void *const operands[OPERANDS], const float *bias) {
    omp_set_num_threads(d->threads);
    char *scratch = d->scratch;
    dnnl_exec_arg_t args[MEMORIES] = {{DNNL_ARG_SCRATCHPAD, p->taken[SCRATCH]}, {DNNL_ARG_BIAS, p->taken[BIAS]}};
    dnnl_memory_set_data_handle(p->taken[SCRATCH], scratch + p->offsets[SCRATCH]);
    if (p->taken[BIAS]) dnnl_memory_set_data_handle(p->taken[BIAS], (void *)bias);
    dnnl_status_t status = dnnl_success;
    int n = p->taken[BIAS] ? 2 : 1;
    for (int i = 0; i < OPERANDS; i++) {
        args[n++] = (dnnl_exec_arg_t){p->names[i], p->taken[i]};
        if (!operands[i]) continue;
        dnnl_memory_set_data_handle(p->taken[i], p->reorders[i] ? scratch + p->offsets[i] : (void *)operands[i]);
        if (p->reorders[i]) dnnl_memory_set_data_handle(p->given[i], (void *)operands[i]);
        if (p->reorders[i] && i != p->result) TRY(run_reorder(d, p->reorders[i], p->given[i], p->taken[i]));
    }
    TRY(dnnl_primitive_execute(p->compute, d->stream, n, args));
    if (p->reorders[p->result]) TRY(run_reorder(d, p->reorders[p->result], p->taken[p->result], p->given[p->result]));
    return status;
}
