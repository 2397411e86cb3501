//go:build onednn && cgo && linux && amd64

#include "recurrent_ops.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "parts.h"

// A product (rows,inner) x (inner,columns) whose first operand and result lie in rows further apart.
struct step {
    dnnl_primitive_t primitive;
    dnnl_memory_t a, b, c, scratch;
    void *scratch_memory;
    size_t scratch_bytes;
};

struct avg_lstm {
    size_t b, t, h;
    struct step forward, backward;
    float *transposed;  // W^T (H,4H)
};

static dnnl_status_t strided(dnnl_memory_desc_t *desc, size_t rows, size_t columns, size_t stride) {
    dnnl_dims_t dims = {(int64_t)rows, (int64_t)columns}, strides = {(int64_t)stride, 1};
    return dnnl_memory_desc_init_by_strides(desc, 2, dims, dnnl_f32, strides);
}

// step_attributes asks for scratch memory of the caller's and, with `add`, for the result to be added to.
static dnnl_status_t step_attributes(dnnl_primitive_attr_t *attr, int add) {
    dnnl_status_t status = dnnl_primitive_attr_create(attr);
    if (status == dnnl_success) status = dnnl_primitive_attr_set_scratchpad_mode(*attr, dnnl_scratchpad_mode_user);
    if (status != dnnl_success || !add) return status;
    dnnl_post_ops_t sum;
    status = dnnl_post_ops_create(&sum);
    if (status != dnnl_success) return status;
    status = dnnl_post_ops_append_sum(sum, 1);
    if (status == dnnl_success) status = dnnl_primitive_attr_set_post_ops(*attr, sum);
    dnnl_post_ops_destroy(sum);
    return status;
}

static dnnl_status_t step_build(struct avg_device *d, struct step *s, dnnl_primitive_desc_t desc,
                                const dnnl_memory_desc_t operands[3]) {
    dnnl_status_t status = dnnl_primitive_create(&s->primitive, desc);
    dnnl_memory_t *memories[3] = {&s->a, &s->b, &s->c};
    for (int i = 0; i < 3 && status == dnnl_success; i++)
        status = dnnl_memory_create(memories[i], &operands[i], d->engine, DNNL_MEMORY_NONE);
    if (status != dnnl_success) return status;
    const dnnl_memory_desc_t *scratch = dnnl_primitive_desc_query_md(desc, dnnl_query_scratchpad_md, 0);
    s->scratch_bytes = dnnl_memory_desc_get_size(scratch);
    if (s->scratch_bytes > 0 && !(s->scratch_memory = avg_allocate(s->scratch_bytes))) return dnnl_out_of_memory;
    return dnnl_memory_create(&s->scratch, scratch, d->engine, s->scratch_memory);
}

static dnnl_status_t step_new(struct avg_device *d, struct step *s, const dnnl_memory_desc_t operands[3], int add) {
    dnnl_primitive_attr_t attr = NULL;
    dnnl_primitive_desc_t desc = NULL;
    dnnl_matmul_desc_t operation;
    dnnl_status_t status = dnnl_matmul_desc_init(&operation, &operands[0], &operands[1], NULL, &operands[2]);
    if (status == dnnl_success) status = step_attributes(&attr, add);
    if (status == dnnl_success) status = dnnl_primitive_desc_create(&desc, &operation, attr, d->engine, NULL);
    if (status == dnnl_success) status = step_build(d, s, desc, operands);
    if (desc) dnnl_primitive_desc_destroy(desc);
    if (attr) dnnl_primitive_attr_destroy(attr);
    return status;
}

static void step_free(struct step *s) {
    dnnl_memory_t memories[] = {s->a, s->b, s->c, s->scratch};
    for (size_t i = 0; i < sizeof memories / sizeof *memories; i++)
        if (memories[i]) dnnl_memory_destroy(memories[i]);
    if (s->primitive) dnnl_primitive_destroy(s->primitive);
    if (s->scratch_memory) avg_free(s->scratch_memory, s->scratch_bytes);
}

// oneDNN does not write through the handles of sources.
static dnnl_status_t step_run(struct avg_device *d, struct step *s, float *c, const float *a, const float *b) {
    dnnl_memory_set_data_handle(s->a, (void *)a);
    dnnl_memory_set_data_handle(s->b, (void *)b);
    dnnl_memory_set_data_handle(s->c, c);
    dnnl_exec_arg_t args[] = {
        {DNNL_ARG_SRC, s->a},
        {DNNL_ARG_WEIGHTS, s->b},
        {DNNL_ARG_DST, s->c},
        {DNNL_ARG_SCRATCHPAD, s->scratch},
    };
    return dnnl_primitive_execute(s->primitive, d->stream, 4, args);
}

int avg_lstm_new(struct avg_device *d, size_t b, size_t t, size_t h, struct avg_lstm **lstm) {
    omp_set_num_threads(d->threads);  // a primitive divides its work when it is created
    struct avg_lstm *l = calloc(1, sizeof *l);
    if (!l) return dnnl_out_of_memory;
    l->b = b, l->t = t, l->h = h;
    l->transposed = avg_allocate(4 * h * h * sizeof(float));
    dnnl_memory_desc_t forward[3], backward[3];
    dnnl_status_t status = l->transposed ? dnnl_success : dnnl_out_of_memory;
    if (status == dnnl_success) status = strided(&forward[0], b, h, t * h);
    if (status == dnnl_success) status = strided(&forward[1], h, 4 * h, 4 * h);
    if (status == dnnl_success) status = strided(&forward[2], b, 4 * h, t * 4 * h);
    if (status == dnnl_success) status = step_new(d, &l->forward, forward, 1);
    if (status == dnnl_success) status = strided(&backward[0], b, 4 * h, t * 4 * h);
    if (status == dnnl_success) status = strided(&backward[1], 4 * h, h, h);
    if (status == dnnl_success) status = strided(&backward[2], b, h, h);
    if (status == dnnl_success) status = step_new(d, &l->backward, backward, 0);
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
    if (l->transposed) avg_free(l->transposed, 4 * l->h * l->h * sizeof(float));
    free(l);
}

int avg_lstm_run(struct avg_device *d, struct avg_lstm *l, float *out, float *gates, float *cells, float *previous,
                 const float *weight, const int32_t *mask, size_t out_stride, int reverse) {
    omp_set_num_threads(d->threads);
    const size_t h = l->h, samples = l->b, length = l->t;
    PARTS(h, LINE, 32 * h * h, d->kernels->recurrent.transposed(l->transposed, weight, 4 * h, h, at.from, at.n););
    for (size_t n = 0; n < length; n++) {
        const size_t t = reverse ? length - 1 - n : n;
        const ptrdiff_t on = reverse ? -1 : 1;  // rows to the next position
        if (n > 0) {
            dnnl_status_t status = step_run(d, &l->forward, gates + t * 4 * h, previous + t * h, l->transposed);
            if (status != dnnl_success) return status;
        }
        PARTS(samples, 1, 40 * samples * h, for (size_t b = at.from; b < at.from + at.n; b++) {
            const size_t row = b * length + t;
            float *next = n + 1 < length ? previous + ((ptrdiff_t)row + on) * (ptrdiff_t)h : NULL;
            const float *before = n > 0 ? cells + ((ptrdiff_t)row - on) * (ptrdiff_t)h : NULL;
            if (n == 0) memset(previous + row * h, 0, h * sizeof(float));
            if (!mask || mask[row]) {
                d->kernels->recurrent.lstm(out + row * out_stride, next, gates + row * 4 * h, cells + row * h, before, h);
                continue;
            }
            memset(out + row * out_stride, 0, h * sizeof(float));
            memset(gates + row * 4 * h, 0, 4 * h * sizeof(float));
            memset(cells + row * h, 0, h * sizeof(float));
            if (next) memset(next, 0, h * sizeof(float));
        });
    }
    return dnnl_success;
}

int avg_lstm_run_backward(struct avg_device *d, struct avg_lstm *l, float *dgates, float *carry, const float *dout,
                          const float *gates, const float *cells, const float *weight, const int32_t *mask,
                          size_t out_stride, int reverse) {
    omp_set_num_threads(d->threads);
    const size_t h = l->h, samples = l->b, length = l->t;
    float *dh = carry, *dcells = carry + samples * h;
    memset(carry, 0, 2 * samples * h * sizeof(float));
    for (size_t n = length; n-- > 0;) {
        const size_t t = reverse ? length - 1 - n : n;
        const ptrdiff_t on = reverse ? -1 : 1;
        PARTS(samples, 1, 60 * samples * h, for (size_t b = at.from; b < at.from + at.n; b++) {
            const size_t row = b * length + t;
            if (mask && !mask[row]) {
                memset(dgates + row * 4 * h, 0, 4 * h * sizeof(float));
                memset(dcells + b * h, 0, h * sizeof(float));
                continue;
            }
            const float *before = n > 0 ? cells + ((ptrdiff_t)row - on) * (ptrdiff_t)h : NULL;
            d->kernels->recurrent.lstm_backward(dgates + row * 4 * h, dcells + b * h, dh + b * h, dout + row * out_stride,
                                                gates + row * 4 * h, cells + row * h, before, h);
        });
        if (n == 0) break;
        dnnl_status_t status = step_run(d, &l->backward, dh, dgates + t * 4 * h, weight);
        if (status != dnnl_success) return status;
    }
    return dnnl_success;
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

void avg_asgd(struct avg_device *d, float *p, const float *g, float *s, float *delta, size_t n, struct asgd a) {
    PARTS(n, LINE, 24 * n,
          d->kernels->recurrent.asgd(p + at.from, g + at.from, s + at.from, delta ? delta + at.from : NULL, at.n, a););
}
