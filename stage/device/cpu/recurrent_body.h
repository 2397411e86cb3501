// The kernels of recurrent.h. Included by kernels_body.h.

INLINE vec vsigmoid(vec x) { return 1.0f / (1.0f + vexp(-x)); }

INLINE vec vtanh(vec x) { return 1.0f - 2.0f / (1.0f + vexp(x + x)); }

static void scaled(float *y, const float *x, float a, size_t n) {
    LANES(n, put(y + i, a * get(x + i, part), part););
}

// gate is what one gate's function is of.
INLINE vec gate(const float *gates, const float *recurrent, size_t part) {
    vec v = get(gates, part);
    return recurrent ? v + get(recurrent, part) : v;
}

static void lstm(float *out, float *gates, const float *recurrent, float *cells, const float *before, size_t n) {
    const float *in_part = recurrent, *forget_part = recurrent ? recurrent + n : NULL;
    const float *cell_part = recurrent ? recurrent + 2 * n : NULL, *open_part = recurrent ? recurrent + 3 * n : NULL;
#define AT(p) ((p) ? (p) + i : NULL)
    LANES(n, vec in = vsigmoid(gate(gates + i, AT(in_part), part));
          vec forget = vsigmoid(gate(gates + n + i, AT(forget_part), part));
          vec cell = vtanh(gate(gates + 2 * n + i, AT(cell_part), part));
          vec open = vsigmoid(gate(gates + 3 * n + i, AT(open_part), part));
          vec c = in * cell; if (before) c = fused(forget, get(before + i, part), c);
          vec h = open * vtanh(c); put(gates + i, in, part); put(gates + n + i, forget, part);
          put(gates + 2 * n + i, cell, part); put(gates + 3 * n + i, open, part); put(cells + i, c, part);
          put(out + i, h, part););
#undef AT
}

static void lstm_backward(float *dgates, float *dcells, const float *dh, const float *dout, const float *gates,
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

static void additive(float *probabilities, const float *q, const float *k, const float *v, const int32_t *mask, size_t keys,
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

static void additive_backward(float *dq, float *dk, float *dv, const float *ds, const float *q, const float *k,
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

// With m the mean logit and t the target's, the loss grows by smoothing (t - m), the gradient by smoothing (onehot - 1/V).
static void smoothed(float *losses, float *dlogits, const float *logits, const int32_t *targets, size_t rows,
                     size_t vocabulary, float scale, float smoothing) {
    for (size_t r = 0; r < rows; r++) {
        const float *row = logits + r * vocabulary;
        float *drow = dlogits ? dlogits + r * vocabulary : NULL;
        float own = targets[r] < 0 ? 0 : row[targets[r]], mean = 0;
        if (targets[r] >= 0) {
            vec sum = {0};
            LANES(vocabulary, sum += get(row + i, part););
            mean = total(sum) / (float)vocabulary;
        }
        cross_entropy(losses + r, drow, row, targets + r, 1, vocabulary, scale);
        if (targets[r] < 0) continue;
        losses[r] += smoothing * (own - mean);
        if (!drow) continue;
        float spread = scale * smoothing / (float)vocabulary;
        LANES(vocabulary, put(drow + i, get(drow + i, part) - spread, part););
        drow[targets[r]] += scale * smoothing;
    }
}

static void asgd(float *p, const float *g, float *s, float *delta, size_t n, struct asgd a) {
    LANES(n, vec before = get(p + i, part); vec offset = get(s + i, part);
          vec grad = a.grad_scale * get(g + i, part) + a.weight_decay * (before + offset);
          vec ahead = offset - a.learning_rate * grad; vec move = a.share * ahead; vec after = before + move;
          put(p + i, after, part); put(s + i, flushed(ahead - move), part);
          if (delta) put(delta + i, get(delta + i, part) + (after - before), part););
}

#define RECURRENT_KERNELS                        \
    {                                            \
        .scaled = scaled,                        \
        .lstm = lstm,                            \
        .lstm_backward = lstm_backward,          \
        .additive = additive,                    \
        .softmax_backward = softmax_backward,    \
        .additive_backward = additive_backward,  \
        .smoothed = smoothed,                    \
        .asgd = asgd,                            \
    }
