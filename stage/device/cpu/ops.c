//go:build onednn && cgo && linux && amd64

#include <omp.h>
#include <pmmintrin.h>
#include <string.h>

#include "device.h"
#include "parts.h"

const struct kernels *avg_kernels(const char *name) {
    __builtin_cpu_init();
    struct {
        const struct kernels *kernels;
        int runs;
    } sets[] = {
        {&avg_kernels_avx512, __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                                  __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")},
        {&avg_kernels_avx2, __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")},
        {&avg_kernels_sse2, 1},
    };
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++)
        if (sets[i].runs && (!name || strcmp(name, sets[i].kernels->name) == 0)) return sets[i].kernels;
    return NULL;
}

int avg_bf16_units(void) {
    const dnnl_cpu_isa_t isa = dnnl_get_effective_cpu_isa();
    if (isa == dnnl_cpu_isa_avx512_core_amx) return 1;  // tiles: 16 times the products of a float instruction
    return avg_bf16_pairs();
}

int avg_bf16_pairs(void) {
    // VDPBF16PS has twice the products of a float multiply-add. AMD's cores start as many of the one as of the other in a cycle,
    // Intel's a quarter as many.
    return dnnl_get_effective_cpu_isa() == dnnl_cpu_isa_avx512_core_bf16 && __builtin_cpu_is("amd");
}

int avg_open(struct avg_device *d, int threads) {
    memset(d, 0, sizeof *d);
    d->kernels = avg_kernels(NULL);
    d->threads = threads;
    d->bf16_units = avg_bf16_units();
    d->bf16_pairs = avg_bf16_pairs();
    dnnl_status_t status = dnnl_engine_create(&d->engine, dnnl_cpu, 0);
    if (status == dnnl_success) status = dnnl_stream_create(&d->stream, d->engine, dnnl_stream_default_flags);
    if (status != dnnl_success) avg_close(d);
    return status;
}

void avg_close(struct avg_device *d) {
    if (d->stream) dnnl_stream_destroy(d->stream);
    if (d->engine) dnnl_engine_destroy(d->engine);
    if (d->scratch) avg_free(d->scratch, d->scratch_bytes);
    if (d->product_scratch) avg_free(d->product_scratch, d->product_scratch_bytes);
    memset(d, 0, sizeof *d);
}

int avg_denormals(int keep) {
    const unsigned before = _mm_getcsr(), zeros = _MM_FLUSH_ZERO_ON | _MM_DENORMALS_ZERO_ON;
    _mm_setcsr(keep ? before & ~zeros : before | zeros);
    return !(before & zeros);
}

void avg_scale(struct avg_device *d, float *x, float a, size_t n) {
    PARTS(n, LINE, 8 * n, d->kernels->scale(x + at.from, a, at.n););
}

void avg_copy(struct avg_device *d, char *y, const char *x, size_t bytes) {
    PARTS(bytes, 64, 2 * bytes, memmove(y + at.from, x + at.from, at.n););
}

void avg_zero(struct avg_device *d, char *x, size_t bytes) {
    PARTS(bytes, 64, bytes, memset(x + at.from, 0, at.n););
}

void avg_axpy(struct avg_device *d, float *y, float a, const float *x, size_t n) {
    PARTS(n, LINE, 12 * n, d->kernels->axpy(y + at.from, a, x + at.from, at.n););
}

void avg_lerp(struct avg_device *d, float *y, float a, const float *x, size_t n) {
    PARTS(n, LINE, 12 * n, d->kernels->lerp(y + at.from, a, x + at.from, at.n););
}

void avg_mul(struct avg_device *d, float *y, const float *x, size_t n) {
    PARTS(n, LINE, 12 * n, d->kernels->mul(y + at.from, x + at.from, at.n););
}

// from is the address of the element with this index.
static void *from(struct elements x, size_t index) { return (char *)x.data + index * (x.bf16 ? 2 : sizeof(float)); }

void avg_add(struct avg_device *d, struct elements out, struct elements a, struct elements b, size_t n) {
    PARTS(n, 2 * LINE, 12 * n, d->kernels->add_mixed(out.data, a.data, b.data, at.from, at.n, out.bf16, a.bf16, b.bf16););
}

void avg_convert(struct avg_device *d, struct elements y, struct elements x, size_t n) {
    PARTS(n, 2 * LINE, 8 * n, d->kernels->convert(y.data, x.data, at.from, at.n, y.bf16, x.bf16););
}

// Column sums are cut by columns, so that each adds its rows in order, whatever the number of threads.
void avg_sum_rows(struct avg_device *d, float *sum, struct elements x, size_t rows, size_t columns) {
    PARTS(columns, 2 * LINE, 4 * rows * columns,
          d->kernels->sum_rows(sum + at.from, from(x, at.from), rows, at.n, columns, x.bf16););
}

void avg_gelu(struct avg_device *d, struct elements y, struct elements x, size_t n) {
    PARTS(n, 2 * LINE, 16 * n, d->kernels->gelu(y.data, x.data, at.from, at.n, x.bf16););
}

void avg_gelu_backward(struct avg_device *d, struct elements dx, struct elements dy, struct elements x, size_t n) {
    PARTS(n, 2 * LINE, 24 * n, d->kernels->gelu_backward(dx.data, dy.data, x.data, at.from, at.n, x.bf16););
}

void avg_layer_norm(struct avg_device *d, struct elements y, float *mean, float *rstd, const float *x, const float *weight,
                    const float *bias, size_t rows, size_t columns, float epsilon) {
    PARTS(rows, 1, 8 * rows * columns,
          d->kernels->layer_norm(from(y, at.from * columns), mean + at.from, rstd + at.from, x + at.from * columns, weight,
                                 bias, at.n, columns, epsilon, y.bf16););
}

void avg_layer_norm_backward(struct avg_device *d, float *dx, struct elements dy, const float *x, const float *mean,
                             const float *rstd, const float *weight, const float *plus, size_t rows, size_t columns) {
    PARTS(rows, 1, 12 * rows * columns,
          d->kernels->layer_norm_backward(dx + at.from * columns, from(dy, at.from * columns), x + at.from * columns,
                                          mean + at.from, rstd + at.from, weight, plus ? plus + at.from * columns : NULL, at.n,
                                          columns, dy.bf16););
}

void avg_norm_backward_weight(struct avg_device *d, float *dweight, float *dbias, struct elements dy, const float *x,
                              const float *mean, const float *rstd, size_t rows, size_t columns) {
    PARTS(columns, 2 * LINE, 8 * rows * columns,
          d->kernels->norm_backward_weight(dweight + at.from, dbias ? dbias + at.from : NULL, dy.data, x, mean, rstd, rows, at.from,
                                           at.n, columns, dy.bf16););
}

void avg_embed(struct avg_device *d, float *out, const float *tokens, const float *positions, const int32_t *ids,
               size_t rows, size_t t, size_t width) {
    PARTS(rows, 1, 12 * rows * width, for (size_t r = at.from; r < at.from + at.n; r++) {
        const float *token = tokens + (size_t)ids[r] * width;
        if (positions)
            d->kernels->add(out + r * width, token, positions + r % t * width, width);
        else
            memcpy(out + r * width, token, width * sizeof *out);
    });
}

// Cut by columns, so that each element's additions happen in the order of the rows.
void avg_embed_backward(struct avg_device *d, float *dtokens, float *dpositions, const float *dout, const int32_t *ids,
                        size_t rows, size_t t, size_t width) {
    PARTS(width, LINE, 20 * rows * width, for (size_t r = 0; r < rows; r++) {
        const float *row = dout + r * width + at.from;
        float *token = dtokens + (size_t)ids[r] * width + at.from;
        d->kernels->add(token, token, row, at.n);
        if (!dpositions) continue;
        float *position = dpositions + r % t * width + at.from;
        d->kernels->add(position, position, row, at.n);
    });
}

void avg_cross_entropy(struct avg_device *d, float *losses, float *dlogits, const float *logits, const int32_t *targets,
                       size_t rows, size_t vocabulary, float scale) {
    PARTS(rows, 1, 16 * rows * vocabulary,
          d->kernels->cross_entropy(losses + at.from, dlogits ? dlogits + at.from * vocabulary : NULL,
                                    logits + at.from * vocabulary, targets + at.from, at.n, vocabulary, scale););
}

void avg_squared_norm(struct avg_device *d, double *total, const float *x, size_t n) {
    BLOCKS(n, 4, total, sum = d->kernels->dot(x + at.from, x + at.from, at.n););
}

void avg_adam(struct avg_device *d, float *p, float *m, float *v, struct stepped s, size_t n, struct adam a) {
    BLOCKS(n, 28, s.total, float *delta = s.delta ? s.delta + at.from : NULL;
           d->kernels->adam(p + at.from, s.g + at.from, m + at.from, v + at.from, delta, at.n, a); STEPPED(p););
}

void avg_sgd(struct avg_device *d, float *p, float *m, struct stepped s, size_t n, struct sgd a) {
    BLOCKS(n, 20, s.total, float *delta = s.delta ? s.delta + at.from : NULL;
           d->kernels->sgd(p + at.from, s.g + at.from, m ? m + at.from : NULL, delta, at.n, a); STEPPED(p););
}
