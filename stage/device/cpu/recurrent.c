//go:build onednn && cgo && linux && amd64

#include "recurrent_ops.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "parts.h"

// A product a (rows,inner) x weights (inner,columns) of fixed shape, the weights laid out beforehand.
struct step {
    dnnl_primitive_t product, reorder;
    dnnl_memory_t a, plain, weights, c, scratch;
    void *packed, *scratch_memory;
    size_t packed_bytes, scratch_bytes;
};

// With weights in bf16 what is multiplied by them is rounded to bf16 first. Where the processor's units for it are slow (avg_bf16_units), both
// are then multiplied as floats.
struct avg_lstm {
    size_t b, t, h;
    int bf16, units;  // the weights are bf16; the products take bf16
    struct step forward, backward;
    float *state, *gates;  // (B,H) and (B,4H), without gaps
    uint16_t *rounded;     // (B,4H) bf16: what is multiplied
};

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

// step_pack lays weights out for the products that follow. oneDNN does not write through the handles of sources.
static dnnl_status_t step_pack(struct avg_device *d, struct step *s, const void *weights) {
    dnnl_memory_set_data_handle(s->plain, (void *)weights);
    dnnl_exec_arg_t args[] = {{DNNL_ARG_FROM, s->plain}, {DNNL_ARG_TO, s->weights}};
    return dnnl_primitive_execute(s->reorder, d->stream, 2, args);
}

static dnnl_status_t step_run(struct avg_device *d, struct step *s, float *c, const void *a) {
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

// keep brings elements [at, at + n) of rows to where the next product takes them: they are there, or are rounded.
static void keep(struct avg_device *d, struct avg_lstm *l, float *rows, size_t at, size_t n) {
    if (!l->bf16) return;
    d->kernels->convert(l->rounded + at, rows + at, 0, n, 1, 0);
    if (!l->units) d->kernels->convert(rows + at, l->rounded + at, 0, n, 0, 1);
}

// kept is where keep brings them.
static const void *kept(const struct avg_lstm *l, const float *rows) { return l->units ? (const void *)l->rounded : rows; }

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

int avg_lstm_run(struct avg_device *d, struct avg_lstm *l, float *out, float *gates, float *cells, void *previous,
                 const void *weight, const float *first, const int32_t *mask, size_t out_stride, int reverse) {
    omp_set_num_threads(d->threads);
    const size_t h = l->h, samples = l->b, length = l->t, bytes = l->bf16 ? sizeof(uint16_t) : sizeof(float);
    dnnl_status_t status = length > 1 ? step_pack(d, &l->forward, weight) : dnnl_success;
    for (size_t n = 0; n < length && status == dnnl_success; n++) {
        const size_t t = reverse ? length - 1 - n : n;
        const ptrdiff_t on = reverse ? -1 : 1;  // rows to the next position
        if (n > 0) status = step_run(d, &l->forward, l->gates, kept(l, l->state));
        PARTS(samples, 1, 48 * samples * h, for (size_t b = at.from; b < at.from + at.n; b++) {
            const size_t row = b * length + t;
            char *next = n + 1 < length ? (char *)previous + (size_t)((ptrdiff_t)row + on) * h * bytes : NULL;
            const float *before = n > 0 ? cells + ((ptrdiff_t)row - on) * (ptrdiff_t)h : first ? first + b * h : NULL;
            const float *recurrent = n > 0 ? l->gates + b * 4 * h : NULL;
            if (n == 0) memset((char *)previous + row * h * bytes, 0, h * bytes);
            if (!mask || mask[row]) {
                d->kernels->recurrent.lstm(out + row * out_stride, gates + row * 4 * h, recurrent, cells + row * h, before, h);
            } else {
                memset(out + row * out_stride, 0, h * sizeof(float));
                memset(gates + row * 4 * h, 0, 4 * h * sizeof(float));
                memset(cells + row * h, 0, h * sizeof(float));
            }
            memcpy(l->state + b * h, out + row * out_stride, h * sizeof(float));
            keep(d, l, l->state, b * h, h);
            if (next) memcpy(next, l->bf16 ? (void *)(l->rounded + b * h) : l->state + b * h, h * bytes);
        });
    }
    return status;
}

int avg_lstm_run_backward(struct avg_device *d, struct avg_lstm *l, float *dgates, float *carry, const float *dout,
                          const float *gates, const float *cells, const void *weight, const int32_t *mask, size_t out_stride,
                          int reverse) {
    omp_set_num_threads(d->threads);
    const size_t h = l->h, samples = l->b, length = l->t;
    float *dh = carry, *dcells = carry + samples * h;
    memset(carry, 0, 2 * samples * h * sizeof(float));
    dnnl_status_t status = length > 1 ? step_pack(d, &l->backward, weight) : dnnl_success;
    for (size_t n = length; n-- > 0 && status == dnnl_success;) {
        const size_t t = reverse ? length - 1 - n : n;
        const ptrdiff_t on = reverse ? -1 : 1;
        PARTS(samples, 1, 76 * samples * h, for (size_t b = at.from; b < at.from + at.n; b++) {
            const size_t row = b * length + t;
            const float *before = n > 0 ? cells + ((ptrdiff_t)row - on) * (ptrdiff_t)h : NULL;
            if (!mask || mask[row]) {
                d->kernels->recurrent.lstm_backward(dgates + row * 4 * h, dcells + b * h, dh + b * h, dout + row * out_stride,
                                                    gates + row * 4 * h, cells + row * h, before, h);
            } else {
                memset(dgates + row * 4 * h, 0, 4 * h * sizeof(float));
                memset(dcells + b * h, 0, h * sizeof(float));
            }
            memcpy(l->gates + b * 4 * h, dgates + row * 4 * h, 4 * h * sizeof(float));
            keep(d, l, l->gates, b * 4 * h, 4 * h);
        });
        if (n > 0) status = step_run(d, &l->backward, dh, kept(l, l->gates));
    }
    return status;
}

void avg_additive(struct avg_device *d, float *probabilities, const float *q, const float *k, const float *v,
                  const int32_t *mask, size_t b, size_t t, size_t n) {
    PARTS(b * t, 1, 32 * b * t * t * n, for (size_t r = at.from; r < at.from + at.n; r++) {
        size_t from = r / t * t;
        d->kernels->recurrent.additive(probabilities + r * t, q + r * n, k + from * n, v, mask ? mask + from : NULL, t, n);
    });
}

// Cut by units, so that every sum adds in the same order with any number of threads.
void avg_additive_backward(struct avg_device *d, float *dq, float *dk, float *dv, float *dprobabilities,
                           const float *probabilities, const float *q, const float *k, const float *v, size_t b, size_t t,
                           size_t n) {
    for (size_t r = 0; r < b * t; r++) d->kernels->recurrent.softmax_backward(dprobabilities + r * t, probabilities + r * t, t);
    memset(dk, 0, b * t * n * sizeof(float));
    memset(dv, 0, n * sizeof(float));
    PARTS(n, LINE, 32 * b * t * t * n, for (size_t r = 0; r < b * t; r++) {
        size_t from = r / t * t * n + at.from;
        d->kernels->recurrent.additive_backward(dq + r * n + at.from, dk + from, dv + at.from, dprobabilities + r * t,
                                                q + r * n + at.from, k + from, v + at.from, t, at.n, n);
    });
}

void avg_weight_norm(struct avg_device *d, float *v, const float *direction, const float *length, size_t n) {
    d->kernels->recurrent.scaled(v, direction, (float)(length[0] / sqrt(d->kernels->dot(direction, direction, n))), n);
}

void avg_weight_norm_backward(struct avg_device *d, float *ddirection, float *dlength, const float *dv,
                              const float *direction, const float *length, size_t n) {
    double norm = sqrt(d->kernels->dot(direction, direction, n)), along = d->kernels->dot(dv, direction, n) / norm;
    dlength[0] += (float)along;
    d->kernels->axpy(ddirection, (float)(length[0] / norm), dv, n);
    d->kernels->axpy(ddirection, (float)(-length[0] / norm * along / norm), direction, n);
}

void avg_copy_columns(struct avg_device *d, float *y, const float *x, size_t rows, size_t columns, size_t y_stride,
                      size_t x_stride, int add) {
    PARTS(rows, 1, 8 * rows * columns, for (size_t r = at.from; r < at.from + at.n; r++) {
        float *to = y + r * y_stride;
        const float *from = x + r * x_stride;
        if (add)
            d->kernels->add(to, to, from, columns);
        else
            memcpy(to, from, columns * sizeof(float));
    });
}

// draw is one number of the sequence of key: see device.Draws.
static uint32_t draw(uint64_t key, uint64_t number) {
    uint32_t c[4] = {(uint32_t)(number >> 2), (uint32_t)(number >> 34), 0, 0};
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    for (int round = 0; round < 10; round++, k0 += 0x9e3779b9u, k1 += 0xbb67ae85u) {
        uint64_t p0 = (uint64_t)0xd2511f53u * c[0], p1 = (uint64_t)0xcd9e8d57u * c[2];
        uint32_t c0 = (uint32_t)(p1 >> 32) ^ c[1] ^ k0, c2 = (uint32_t)(p0 >> 32) ^ c[3] ^ k1;
        c[0] = c0, c[1] = (uint32_t)p1, c[2] = c2, c[3] = (uint32_t)p0;
    }
    return c[number & 3];
}

void avg_drop_rows(struct avg_device *d, float *y, const float *x, const int32_t *ids, size_t rows, size_t columns,
                   struct dropout o) {
    PARTS(rows, 1, 8 * rows * columns, for (size_t r = at.from; r < at.from + at.n; r++) {
        float factor = draw(o.key, (uint64_t)ids[r]) < o.threshold ? 0 : o.scale;
        d->kernels->recurrent.scaled(y + r * columns, x + r * columns, factor, columns);
    });
}

void avg_smoothed(struct avg_device *d, float *losses, float *dlogits, const float *logits, const int32_t *targets,
                  size_t rows, size_t vocabulary, float scale, float smoothing) {
    PARTS(rows, 1, 20 * rows * vocabulary,
          d->kernels->recurrent.smoothed(losses + at.from, dlogits ? dlogits + at.from * vocabulary : NULL,
                                         logits + at.from * vocabulary, targets + at.from, at.n, vocabulary, scale,
                                         smoothing););
}

void avg_asgd(struct avg_device *d, float *p, float *state, struct stepped s, size_t n, struct asgd a) {
    BLOCKS(n, 24, s.total, float *delta = s.delta ? s.delta + at.from : NULL;
           d->kernels->recurrent.asgd(p + at.from, s.g + at.from, state + at.from, delta, at.n, a); STEPPED(p););
}
