//go:build onednn && cgo && linux && amd64

#include <omp.h>
#include <stdlib.h>

#include "primitives.h"

// Where packs says so, a product first brings B into blocks of oneDNN's choice, in scratch memory. Else oneDNN copies parts of B as it goes.
//
// Where the processor's bf16 units are fast (bf16_units), a product of two bf16 operands is oneDNN's own. Elsewhere such operands are
// widened and multiplied as floats: the same products, exact, and sums in float either way.

// matrix describes (rows, columns), stored as it is or transposed.
static dnnl_status_t matrix(dnnl_memory_desc_t *desc, int64_t rows, int64_t columns, int transposed, int bf16) {
    dnnl_dims_t dims = {rows, columns};
    dnnl_dims_t plain = {columns, 1}, swapped = {1, rows};
    return dnnl_memory_desc_init_by_strides(desc, 2, dims, bf16 ? dnnl_bf16 : dnnl_f32, transposed ? swapped : plain);
}

// packs reports whether a product is fastest with B packed first. Intel's cores take up to two times as long without, where rows lie a
// multiple of 4 KiB apart. AMD's (Zen 5, measured) lose up to a half by packing a transposed B, and a fifth where A has few rows to share it.
static int packs(int64_t m, int flags, int bf16) {
    const int widened = (flags & AVG_BF16_B) && !bf16;
    return widened || (flags & AVG_PACK_B) || !__builtin_cpu_is("amd") || (m > 512 && !(flags & AVG_TRANS_B));
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
    const int bf16 = d->bf16_units && (flags & AVG_BF16_A) && (flags & AVG_BF16_B);
    dnnl_memory_desc_t given[OPERANDS], taken[OPERANDS], row, *bias = flags & AVG_BIAS ? &row : NULL;
    dnnl_matmul_desc_t operation;
    dnnl_status_t status = matrix(&given[0], m, k, flags & AVG_TRANS_A, flags & AVG_BF16_A);
    TRY(matrix(&given[1], k, n, flags & AVG_TRANS_B, flags & AVG_BF16_B));
    TRY(matrix(&given[2], m, n, 0, flags & AVG_BF16_C));
    TRY(matrix(&row, 1, n, 0, 0));
    TRY(matrix(&taken[0], m, k, flags & AVG_TRANS_A, bf16));
    TRY(weights(&taken[1], m, n, k, flags, bf16));
    TRY(matrix(&taken[2], m, n, 0, bf16 && (flags & AVG_BF16_C)));
    TRY(dnnl_matmul_desc_init(&operation, &taken[0], &taken[1], bias, &taken[2]));
    *p = (struct avg_product){.names = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST}, .result = 2};
    TRY(avg_primitive_create(d, p, &operation, NULL, flags & AVG_ACCUMULATE, given, bias));
    return status;
}

int avg_product_new(struct avg_device *d, int64_t m, int64_t n, int64_t k, int flags, struct avg_product **product) {
    omp_set_num_threads(d->threads);  // a primitive divides its work when it is created
    struct avg_product *p = calloc(1, sizeof *p);
    if (!p) return dnnl_out_of_memory;
    if (!gradient_of(d, m, n, k, flags, &p->gradient)) return avg_made(p, create(d, p, m, n, k, flags), product);
    p->implementation = "gradient:avx512_core_bf16";
    return avg_made(p, dnnl_success, product);
}

int avg_product_run(struct avg_device *d, struct avg_product *p, void *c, const void *a, const void *b, const float *bias) {
    if (!p->gradient.k) return avg_primitive_run(d, p, (const void *[]){a, b, c}, bias);
    struct gradient g = p->gradient;
    g.c = c, g.a = a, g.b = b;
    return avg_gradient(d, g) ? dnnl_out_of_memory : dnnl_success;
}
