//go:build onednn && cgo && linux && amd64

#include <omp.h>
#include <stdlib.h>

#include "device.h"

// Where packs says so, a product first brings B into blocks of oneDNN's choice, in scratch memory. Else oneDNN copies parts of B as it goes.
//
// Where the processor's bf16 units are fast (avg_bf16_units), a product of two bf16 operands is oneDNN's own. Elsewhere such operands are
// widened and multiplied as floats: the same products, exact, and sums in float either way.
struct avg_product {
    dnnl_primitive_t primitive, pack_a, pack_b, round_c;  // pack_a only widens; NULL where there is nothing to do
    dnnl_memory_t a, b, c, bias, scratch;                 // what the primitive works on
    dnnl_memory_t given_a, given_b, given_c;              // the caller's, where it is something else
    size_t offsets[4], scratch_bytes;                     // of packed A, packed B, wide C and oneDNN's own, in the device's scratch
    const char *implementation;
    struct gradient gradient;  // where avg_gradient computes it: k is not 0, and there is no primitive
};

// matrix describes (rows, columns), stored as it is or transposed.
static dnnl_status_t matrix(dnnl_memory_desc_t *desc, int64_t rows, int64_t columns, int transposed, int bf16) {
    dnnl_dims_t dims = {rows, columns};
    dnnl_dims_t plain = {columns, 1}, swapped = {1, rows};
    return dnnl_memory_desc_init_by_strides(desc, 2, dims, bf16 ? dnnl_bf16 : dnnl_f32, transposed ? swapped : plain);
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

// take reserves scratch memory for an operand at a multiple of 64 bytes and makes the memory object.
static dnnl_status_t take(struct avg_device *d, struct avg_product *p, int index, const dnnl_memory_desc_t *desc, dnnl_memory_t *memory) {
    p->offsets[index] = p->scratch_bytes;
    p->scratch_bytes += (dnnl_memory_desc_get_size(desc) + 63) / 64 * 64;
    return dnnl_memory_create(memory, desc, d->engine, DNNL_MEMORY_NONE);
}

static dnnl_status_t reorder(struct avg_device *d, dnnl_primitive_t *primitive, const dnnl_memory_desc_t *from,
                             const dnnl_memory_desc_t *to) {
    dnnl_primitive_attr_t attr = NULL;
    dnnl_primitive_desc_t desc = NULL;
    dnnl_status_t status = dnnl_primitive_attr_create(&attr);
    if (status == dnnl_success) status = dnnl_reorder_primitive_desc_create(&desc, from, d->engine, to, d->engine, attr);
    if (status == dnnl_success) status = dnnl_primitive_create(primitive, desc);
    if (desc) dnnl_primitive_desc_destroy(desc);
    if (attr) dnnl_primitive_attr_destroy(attr);
    return status;
}

// operand makes the memory of an operand and, where the primitive takes it otherwise than the caller has it, the reorder
// between both and the caller's memory: into scratch, or back from it for C.
static dnnl_status_t operand(struct avg_device *d, struct avg_product *p, int index, const dnnl_memory_desc_t *given,
                             const dnnl_memory_desc_t *wanted) {
    dnnl_memory_t *memories[3] = {&p->a, &p->b, &p->c}, *callers[3] = {&p->given_a, &p->given_b, &p->given_c};
    dnnl_primitive_t *reorders[3] = {&p->pack_a, &p->pack_b, &p->round_c};
    if (dnnl_memory_desc_equal(given, wanted)) return dnnl_memory_create(memories[index], wanted, d->engine, DNNL_MEMORY_NONE);
    dnnl_status_t status = take(d, p, index, wanted, memories[index]);
    if (status == dnnl_success) status = dnnl_memory_create(callers[index], given, d->engine, DNNL_MEMORY_NONE);
    if (status != dnnl_success) return status;
    return index == 2 ? reorder(d, reorders[index], wanted, given) : reorder(d, reorders[index], given, wanted);
}

// build fills p from a primitive descriptor; given are the caller's operands A, B, C and bias.
static dnnl_status_t build(struct avg_device *d, struct avg_product *p, dnnl_primitive_desc_t desc,
                           const dnnl_memory_desc_t given[4], int bias) {
    const dnnl_query_t queries[3] = {dnnl_query_src_md, dnnl_query_weights_md, dnnl_query_dst_md};
    dnnl_status_t status = dnnl_primitive_create(&p->primitive, desc);
    for (int i = 0; i < 3 && status == dnnl_success; i++)
        status = operand(d, p, i, &given[i], dnnl_primitive_desc_query_md(desc, queries[i], 0));
    if (bias && status == dnnl_success) status = dnnl_memory_create(&p->bias, &given[3], d->engine, DNNL_MEMORY_NONE);
    if (status == dnnl_success)
        status = take(d, p, 3, dnnl_primitive_desc_query_md(desc, dnnl_query_scratchpad_md, 0), &p->scratch);
    return status == dnnl_success && !avg_reserve(d, p->scratch_bytes) ? dnnl_out_of_memory : status;
}

// packs reports whether a product is fastest with B packed first. Intel's cores take up to two times as long without, where rows lie a
// multiple of 4 KiB apart. AMD's (Zen 5, measured) lose up to a half by packing a transposed B, and a fifth where A has few rows to share it.
static int packs(int64_t m, int flags, int bf16) {
    const int widened = (flags & AVG_BF16_B) && !bf16;
    return widened || !__builtin_cpu_is("amd") || (m > 512 && !(flags & AVG_TRANS_B));
}

// weights describes B (k,n) as the primitive takes it.
static dnnl_status_t weights(dnnl_memory_desc_t *desc, int64_t m, int64_t n, int64_t k, int flags, int bf16) {
    if (!packs(m, flags, bf16)) return matrix(desc, k, n, flags & AVG_TRANS_B, bf16);
    dnnl_dims_t dims = {k, n};
    return dnnl_memory_desc_init_by_tag(desc, 2, dims, bf16 ? dnnl_bf16 : dnnl_f32, dnnl_format_tag_any);
}

// gradient_of reports whether avg_gradient computes a product faster than oneDNN, and fills in its shape. Measured on Zen 5: by a fifth to
// two thirds at 128 rows, by a tenth to a half at 256, and not at 512.
static int gradient_of(const struct avg_device *d, int64_t m, int64_t n, int64_t k, int flags, struct gradient *gradient) {
    const int bf16 = flags & (AVG_BF16_A | AVG_BF16_B);
    if (!d->bf16_pairs || k > 256 || (flags & ~(AVG_ACCUMULATE | bf16)) != AVG_TRANS_A) return 0;
    if (bf16 && bf16 != (AVG_BF16_A | AVG_BF16_B)) return 0;
    *gradient = (struct gradient){.m = m, .n = n, .k = k, .accumulate = (flags & AVG_ACCUMULATE) != 0, .bf16 = bf16 != 0};
    return 1;
}

// create fills p with a product of oneDNN's.
static dnnl_status_t create(struct avg_device *d, struct avg_product *p, int64_t m, int64_t n, int64_t k, int flags) {
    const int bias = (flags & AVG_BIAS) != 0;
    const int bf16 = d->bf16_units && (flags & AVG_BF16_A) && (flags & AVG_BF16_B);
    dnnl_memory_desc_t given[4], wide[3];
    dnnl_status_t status = matrix(&given[0], m, k, flags & AVG_TRANS_A, flags & AVG_BF16_A);
    if (status == dnnl_success) status = matrix(&given[1], k, n, flags & AVG_TRANS_B, flags & AVG_BF16_B);
    if (status == dnnl_success) status = matrix(&given[2], m, n, 0, flags & AVG_BF16_C);
    if (status == dnnl_success) status = matrix(&given[3], 1, n, 0, 0);
    if (status == dnnl_success) status = matrix(&wide[0], m, k, flags & AVG_TRANS_A, bf16);
    if (status == dnnl_success) status = weights(&wide[1], m, n, k, flags, bf16);
    if (status == dnnl_success) status = matrix(&wide[2], m, n, 0, bf16 && (flags & AVG_BF16_C));
    dnnl_matmul_desc_t operation;
    if (status == dnnl_success) status = dnnl_matmul_desc_init(&operation, &wide[0], &wide[1], bias ? &given[3] : NULL, &wide[2]);
    if (status != dnnl_success) return status;
    dnnl_primitive_attr_t attr = NULL;
    dnnl_primitive_desc_t desc = NULL;
    status = attributes(&attr, flags & AVG_ACCUMULATE);
    if (status == dnnl_success) status = dnnl_primitive_desc_create(&desc, &operation, attr, d->engine, NULL);
    if (status == dnnl_success)
        status = dnnl_primitive_desc_query(desc, dnnl_query_impl_info_str, 0, (void *)&p->implementation);
    if (status == dnnl_success) status = build(d, p, desc, given, bias);
    if (desc) dnnl_primitive_desc_destroy(desc);
    if (attr) dnnl_primitive_attr_destroy(attr);
    return status;
}

int avg_product_new(struct avg_device *d, int64_t m, int64_t n, int64_t k, int flags, struct avg_product **product) {
    omp_set_num_threads(d->threads);  // a primitive divides its work when it is created
    struct avg_product *p = *product = calloc(1, sizeof *p);
    if (!p) return dnnl_out_of_memory;
    dnnl_status_t status = dnnl_success;
    if (gradient_of(d, m, n, k, flags, &p->gradient)) {
        p->implementation = "gradient:avx512_core_bf16";
    } else {
        status = create(d, p, m, n, k, flags);
    }
    if (status != dnnl_success) {
        avg_product_free(p);
        *product = NULL;
    }
    return status;
}

void avg_product_free(struct avg_product *p) {
    dnnl_memory_t memories[] = {p->a, p->b, p->c, p->bias, p->scratch, p->given_a, p->given_b, p->given_c};
    dnnl_primitive_t primitives[] = {p->primitive, p->pack_a, p->pack_b, p->round_c};
    for (size_t i = 0; i < sizeof memories / sizeof *memories; i++)
        if (memories[i]) dnnl_memory_destroy(memories[i]);
    for (size_t i = 0; i < sizeof primitives / sizeof *primitives; i++)
        if (primitives[i]) dnnl_primitive_destroy(primitives[i]);
    free(p);
}

const char *avg_product_implementation(const struct avg_product *p) { return p->implementation; }

static dnnl_status_t convert(struct avg_device *d, dnnl_primitive_t primitive, dnnl_memory_t from, dnnl_memory_t to) {
    dnnl_exec_arg_t args[] = {{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, to}};
    return dnnl_primitive_execute(primitive, d->stream, 2, args);
}

// place points a memory at the caller's operand, or at scratch and the given one at the caller's.
static void place(struct avg_device *d, struct avg_product *p, int index, dnnl_memory_t memory, dnnl_memory_t given, void *operand) {
    dnnl_memory_set_data_handle(memory, given ? (char *)d->scratch + p->offsets[index] : operand);
    if (given) dnnl_memory_set_data_handle(given, operand);
}

// oneDNN does not write through the handles of sources.
int avg_product_run(struct avg_device *d, struct avg_product *p, void *c, const void *a, const void *b, const float *bias) {
    omp_set_num_threads(d->threads);
    if (p->gradient.k) {
        struct gradient g = p->gradient;
        g.c = c, g.a = a, g.b = b;
        return avg_gradient(d, g) ? dnnl_out_of_memory : dnnl_success;
    }
    place(d, p, 0, p->a, p->given_a, (void *)a);
    place(d, p, 1, p->b, p->given_b, (void *)b);
    place(d, p, 2, p->c, p->given_c, c);
    dnnl_memory_set_data_handle(p->scratch, (char *)d->scratch + p->offsets[3]);
    if (p->bias) dnnl_memory_set_data_handle(p->bias, (void *)bias);
    dnnl_exec_arg_t args[] = {
        {DNNL_ARG_SRC, p->a},
        {DNNL_ARG_WEIGHTS, p->b},
        {DNNL_ARG_DST, p->c},
        {DNNL_ARG_SCRATCHPAD, p->scratch},
        {DNNL_ARG_BIAS, p->bias},
    };
    dnnl_status_t status = p->pack_a ? convert(d, p->pack_a, p->given_a, p->a) : dnnl_success;
    if (status == dnnl_success && p->pack_b) status = convert(d, p->pack_b, p->given_b, p->b);
    if (status == dnnl_success) status = dnnl_primitive_execute(p->primitive, d->stream, p->bias ? 5 : 4, args);
    if (status == dnnl_success && p->round_c) status = convert(d, p->round_c, p->c, p->given_c);
    return status;
}
