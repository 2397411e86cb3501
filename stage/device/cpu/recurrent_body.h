// Operations of recurrent networks. Included by kernels_body.h.

// gate is what one gate's function is of.
INLINE vec gate(const float *gates, const float *recurrent, size_t part) {
    vec v = get(gates, part);
    return recurrent ? v + get(recurrent, part) : v;
}

// One sample at one position: gates, recurrent, which is added to them, and dgates (4,n), all others (n). before holds the cells of the
// position before; NULL where there is none, as recurrent.
static void cell_forward(float *out, float *gates, const float *recurrent, float *cells, const float *before, size_t n) {
    const float *in_part = recurrent, *forget_part = recurrent ? recurrent + n : NULL;
    const float *cell_part = recurrent ? recurrent + 2 * n : NULL, *open_part = recurrent ? recurrent + 3 * n : NULL;
#define AT(p) ((p) ? (p) + i : NULL)
    LANES(n, vec in = sigmoid(gate(gates + i, AT(in_part), part));
          vec forget = sigmoid(gate(gates + n + i, AT(forget_part), part));
          vec cell = vtanh(gate(gates + 2 * n + i, AT(cell_part), part));
          vec open = sigmoid(gate(gates + 3 * n + i, AT(open_part), part));
          vec c = in * cell; if (before) c = fused(forget, get(before + i, part), c);
          vec h = open * vtanh(c); put(gates + i, in, part); put(gates + n + i, forget, part);
          put(gates + 2 * n + i, cell, part); put(gates + 3 * n + i, open, part); put(cells + i, c, part);
          put(out + i, h, part););
#undef AT
}

static void cell_backward(float *dgates, float *dcells, const float *dh, const float *dout, const float *gates,
                          const float *cells, const float *before, size_t n) {
    LANES(n, vec in = get(gates + i, part); vec forget = get(gates + n + i, part);
          vec cell = get(gates + 2 * n + i, part); vec open = get(gates + 3 * n + i, part);
          vec squashed = vtanh(get(cells + i, part)); vec h = get(dout + i, part) + get(dh + i, part);
          vec dc = fused(h * open, 1.0f - squashed * squashed, get(dcells + i, part)); vec dforget = {0};
          if (before) dforget = dc * get(before + i, part) * forget * (1.0f - forget);
          put(dgates + i, dc * cell * in * (1.0f - in), part); put(dgates + n + i, dforget, part);
          put(dgates + 2 * n + i, dc * in * (1.0f - cell * cell), part);
          put(dgates + 3 * n + i, h * squashed * open * (1.0f - open), part); put(dcells + i, dc * forget, part););
}

// One query against `keys` keys of n units; those with mask 0 are not attended to (NULL: none).
static void additive_row(float *probabilities, const float *q, const float *k, const float *v, const int32_t *mask, size_t keys,
                     size_t n) {
    float top = -INFINITY;
    for (size_t j = 0; j < keys; j++, k += n) {
        if (mask && !mask[j]) continue;
        vec sum = {0};
        LANES(n, sum = fused(get(v + i, part), vtanh(get(q + i, part) + get(k + i, part)), sum););
        probabilities[j] = total(sum);
        if (!(probabilities[j] <= top)) top = probabilities[j];  // a NaN comes through
    }
    double all = 0;
    for (size_t j = 0; j < keys; j++) {
        if (mask && !mask[j])
            probabilities[j] = 0;
        else
            all += probabilities[j] = expf(probabilities[j] - top);
    }
    if (all == 0) return;  // no key is attended to
    for (size_t j = 0; j < keys; j++) probabilities[j] = (float)(probabilities[j] / all);
}

static void softmax_backward(float *dp, const float *p, size_t n) {
    vec sum = {0};
    LANES(n, sum = fused(get(p + i, part), get(dp + i, part), sum););
    float mean = total(sum);
    LANES(n, put(dp + i, get(p + i, part) * (get(dp + i, part) - mean), part););
}

// n of `stride` units: dq is set, dk and dv are added to.
static void additive_row_backward(float *dq, float *dk, float *dv, const float *ds, const float *q, const float *k,
                              const float *v, size_t keys, size_t n, size_t stride) {
    memset(dq, 0, n * sizeof *dq);
    for (size_t j = 0; j < keys; j++, k += stride, dk += stride) {
        if (ds[j] == 0) continue;  // masked
        LANES(n, vec squashed = vtanh(get(q + i, part) + get(k + i, part));
              vec slope = ds[j] * get(v + i, part) * (1.0f - squashed * squashed);
              put(dq + i, get(dq + i, part) + slope, part); put(dk + i, get(dk + i, part) + slope, part);
              put(dv + i, get(dv + i, part) + ds[j] * squashed, part););
    }
}

// bring brings elements [at, at + n) of rows to where the next product takes them: they are there, or are rounded.
static void bring(struct avg_lstm *l, float *rows, size_t at, size_t n) {
    if (!l->bf16) return;
    const struct elements wide = {rows, 0}, narrow = {l->rounded, 1};
    converted(narrow, wide, at, n);
    if (!l->units) converted(wide, narrow, at, n);
}

// brought is where they are then.
static const void *brought(const struct avg_lstm *l, const float *rows) { return l->units ? (const void *)l->rounded : rows; }

static int lstm(struct avg_device *d, struct avg_lstm *l, struct lstm x) {
    omp_set_num_threads(d->threads);
    const size_t h = l->h, samples = l->b, length = l->t, bytes = l->bf16 ? sizeof(uint16_t) : sizeof(float);
    const ptrdiff_t on = x.reverse ? -1 : 1;  // rows to the next position
    dnnl_status_t status = dnnl_success;
    for (size_t n = 0; n < length && status == dnnl_success; n++) {
        const size_t t = x.reverse ? length - 1 - n : n;
        if (n > 0) status = avg_product_run(d, l->forward, l->gates, brought(l, l->state), n == 1 ? x.weight : NULL, NULL);
        PARTS(samples, 1, 48 * samples * h, for (size_t b = at.from; b < at.from + at.n; b++) {
            const size_t row = b * length + t;
            float *out = x.out + row * x.out_stride, *gates = x.gates + row * 4 * h, *cells = x.cells + row * h;
            char *next = n + 1 < length ? (char *)x.previous + (size_t)((ptrdiff_t)row + on) * h * bytes : NULL;
            const float *before = n > 0 ? cells - on * (ptrdiff_t)h : x.before ? x.before + b * h : NULL;
            if (n == 0) memset((char *)x.previous + row * h * bytes, 0, h * bytes);
            if (!x.mask || x.mask[row]) {
                cell_forward(out, gates, n > 0 ? l->gates + b * 4 * h : NULL, cells, before, h);
            } else {
                memset(out, 0, h * sizeof(float));
                memset(gates, 0, 4 * h * sizeof(float));
                memset(cells, 0, h * sizeof(float));
            }
            memcpy(l->state + b * h, out, h * sizeof(float));
            bring(l, l->state, b * h, h);
            if (next) memcpy(next, l->bf16 ? (void *)(l->rounded + b * h) : l->state + b * h, h * bytes);
        });
    }
    return status;
}

static int lstm_backward(struct avg_device *d, struct avg_lstm *l, struct lstm x) {
    omp_set_num_threads(d->threads);
    const size_t h = l->h, samples = l->b, length = l->t;
    const ptrdiff_t on = x.reverse ? -1 : 1;
    float *dh = x.carry, *dcells = x.carry + samples * h;
    memset(x.carry, 0, 2 * samples * h * sizeof(float));
    dnnl_status_t status = dnnl_success;
    for (size_t n = length; n-- > 0 && status == dnnl_success;) {
        const size_t t = x.reverse ? length - 1 - n : n;
        PARTS(samples, 1, 76 * samples * h, for (size_t b = at.from; b < at.from + at.n; b++) {
            const size_t row = b * length + t;
            const float *cells = x.cells + row * h, *before = n > 0 ? cells - on * (ptrdiff_t)h : NULL;
            float *dgates = x.dgates + row * 4 * h;
            if (!x.mask || x.mask[row]) {
                cell_backward(dgates, dcells + b * h, dh + b * h, x.dout + row * x.out_stride, x.gates + row * 4 * h, cells, before, h);
            } else {
                memset(dgates, 0, 4 * h * sizeof(float));
                memset(dcells + b * h, 0, h * sizeof(float));
            }
            memcpy(l->gates + b * 4 * h, dgates, 4 * h * sizeof(float));
            bring(l, l->gates, b * 4 * h, 4 * h);
        });
        if (n > 0) status = avg_product_run(d, l->backward, dh, brought(l, l->gates), n + 1 == length ? x.weight : NULL, NULL);
    }
    return status;
}

static void additive(struct avg_device *d, float *probabilities, const float *q, const float *k, const float *v, const int32_t *mask, size_t b,
                     size_t t, size_t n) {
    PARTS(b * t, 1, 32 * b * t * t * n, for (size_t r = at.from; r < at.from + at.n; r++) {
        const size_t from = r / t * t;
        additive_row(probabilities + r * t, q + r * n, k + from * n, v, mask ? mask + from : NULL, t, n);
    });
}

// Cut by units, so that every sum adds in the same order with any number of threads.
static void additive_backward(struct avg_device *d, float *dq, float *dk, float *dv, float *dprobabilities, const float *probabilities,
                              const float *q, const float *k, const float *v, size_t b, size_t t, size_t n) {
    for (size_t r = 0; r < b * t; r++) softmax_backward(dprobabilities + r * t, probabilities + r * t, t);
    memset(dk, 0, b * t * n * sizeof(float));
    memset(dv, 0, n * sizeof(float));
    PARTS(n, LINE, 32 * b * t * t * n, for (size_t r = 0; r < b * t; r++) {
        const size_t from = r / t * t * n + at.from, own = r * n + at.from;
        additive_row_backward(dq + own, dk + from, dv + at.from, dprobabilities + r * t, q + own, k + from, v + at.from, t, at.n, n);
    });
}

static void weight_norm(struct avg_device *d, float *v, const float *direction, const float *length, size_t n) {
    (void)d;
    scaled(v, direction, (float)(length[0] / sqrt(dot(direction, direction, n))), n);
}

static void weight_norm_backward(struct avg_device *d, float *ddirection, float *dlength, const float *dv, const float *direction,
                                 const float *length, size_t n) {
    const double norm = sqrt(dot(direction, direction, n)), along = dot(dv, direction, n) / norm;
    dlength[0] += (float)along;
    axpy(d, ddirection, (float)(length[0] / norm), dv, n);
    axpy(d, ddirection, (float)(-length[0] / norm * along / norm), direction, n);
}
