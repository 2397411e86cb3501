// The kernels, in terms of the vectors that the including file defines. No include guard: each kernels_*.c compiles it
// once, for its instruction set.

#include <math.h>
#include <string.h>

#include "kernels.h"
#include "vector.h"

static void scale(float *x, float a, size_t n) {
    LANES(n, put(x + i, get(x + i, part) * a, part););
}

static void axpy(float *y, float a, const float *x, size_t n) {
    LANES(n, put(y + i, get(y + i, part) + a * get(x + i, part), part););
}

static void lerp(float *y, float a, const float *x, size_t n) {
    LANES(n, vec from = get(y + i, part); put(y + i, from + a * (get(x + i, part) - from), part););
}

static void mul(float *y, const float *x, size_t n) {
    LANES(n, put(y + i, get(y + i, part) * get(x + i, part), part););
}

static void add(float *out, const float *a, const float *b, size_t n) {
    LANES(n, put(out + i, get(a + i, part) + get(b + i, part), part););
}

// Types are constants where these are inlined.
INLINE void add_of(void *out, const void *a, const void *b, size_t from, size_t n, int ob, int ab, int bb) {
    LANES(n, keep(out, from + i, stream(a, from + i, part, ab) + stream(b, from + i, part, bb), part, ob););
}

static void add_mixed(void *out, const void *a, const void *b, size_t from, size_t n, int out_bf16, int a_bf16, int b_bf16) {
    switch (out_bf16 * 4 + a_bf16 * 2 + b_bf16) {
        case 0: add_of(out, a, b, from, n, 0, 0, 0); break;
        case 1: add_of(out, a, b, from, n, 0, 0, 1); break;
        case 2: add_of(out, a, b, from, n, 0, 1, 0); break;
        case 3: add_of(out, a, b, from, n, 0, 1, 1); break;
        case 4: add_of(out, a, b, from, n, 1, 0, 0); break;
        case 5: add_of(out, a, b, from, n, 1, 0, 1); break;
        case 6: add_of(out, a, b, from, n, 1, 1, 0); break;
        case 7: add_of(out, a, b, from, n, 1, 1, 1); break;
    }
}

INLINE void convert_of(void *y, const void *x, size_t from, size_t n, int yb, int xb) {
    LANES(n, keep(y, from + i, stream(x, from + i, part, xb), part, yb););
}

static void convert(void *y, const void *x, size_t from, size_t n, int y_bf16, int x_bf16) {
    if (y_bf16 == x_bf16)
        memcpy((char *)y + from * (y_bf16 ? 2 : 4), (const char *)x + from * (y_bf16 ? 2 : 4), n * (y_bf16 ? 2 : 4));
    else if (y_bf16)
        convert_of(y, x, from, n, 1, 0);
    else
        convert_of(y, x, from, n, 0, 1);
}

INLINE dvec widen(const float *p) {
    half h;
    memcpy(&h, p, sizeof h);
    return __builtin_convertvector(h, dvec);
}

// Eight sums at a stride, then the tail, then the sums in order: the same order for any caller.
static double dot(const float *x, const float *y, size_t n) {
    dvec sums[4] = {{0}};
    size_t i = 0;
    for (; i + 2 * WIDTH <= n; i += 2 * WIDTH) {
        for (int j = 0; j < 2 * WIDTH; j += 16) {
            __builtin_prefetch((const char *)(x + i + j) + AHEAD);
            __builtin_prefetch((const char *)(y + i + j) + AHEAD);
        }
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++) sums[j] += widen(x + i + j * WIDTH / 2) * widen(y + i + j * WIDTH / 2);
    }
    dvec sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);
    double result = 0;
    for (; i < n; i++) result += (double)x[i] * y[i];
    for (int j = 0; j < WIDTH / 2; j++) result += sum[j];
    return result;
}

// gelu(x) = x / (1 + exp(-2u)) with u = sqrt(2/pi) (x + 0.044715 x^3), which is the tanh form rearranged.
#define GELU_SCALE 0.7978845608f
#define GELU_CUBIC 0.044715f

// gelu_sigmoid is 1 / (1 + exp(-2u)).
INLINE vec gelu_sigmoid(vec x) {
    vec u = x * fused(x * x, splat(-2 * GELU_SCALE * GELU_CUBIC), splat(-2 * GELU_SCALE));
    return 1.0f / (1.0f + vexp(u));
}

INLINE void gelu_of(void *y, const void *x, size_t from, size_t n, int bf16) {
    LANES(n, vec v = stream(x, from + i, part, bf16); keep(y, from + i, v * gelu_sigmoid(v), part, bf16););
}

static void gelu(void *y, const void *x, size_t from, size_t n, int bf16) {
    if (bf16)
        gelu_of(y, x, from, n, 1);
    else
        gelu_of(y, x, from, n, 0);
}

INLINE void gelu_backward_of(void *dx, const void *dy, const void *x, size_t from, size_t n, int bf16) {
    // The slope is s + s (1 - s) x d(2u)/dx. Beyond 30 it is 0 or 1 to the last bit, and x d(2u)/dx may overflow.
    LANES(n, vec v = stream(x, from + i, part, bf16); vec s = gelu_sigmoid(v);
          vec near = highest(splat(-30.0f), lowest(splat(30.0f), v));
          vec du = fused(near * near, splat(6 * GELU_SCALE * GELU_CUBIC), splat(2 * GELU_SCALE));
          vec slope = fused(near * du, s * (1.0f - s), s);
          keep(dx, from + i, stream(dy, from + i, part, bf16) * slope, part, bf16););
}

static void gelu_backward(void *dx, const void *dy, const void *x, size_t from, size_t n, int bf16) {
    if (bf16)
        gelu_backward_of(dx, dy, x, from, n, 1);
    else
        gelu_backward_of(dx, dy, x, from, n, 0);
}

// The mean first, then the sums of differences from it and of their squares (the corrected two-pass algorithm: Chan,
// Golub and LeVeque 1983, equation 1.7). The mean is taken of differences from an element: where all are nearly the same, of what they
// differ in. Rounding may leave a variance below 0 where it is 0.
INLINE void moments(const float *x, size_t n, float *mean, float *variance) {
    const float origin = x[0];
    vec sums[4] = {{0}};  // in flight at once: an addition takes four cycles
    size_t quads = n / (4 * WIDTH) * (4 * WIDTH);
    for (size_t i = 0; i < quads; i += 4 * WIDTH)
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++) sums[j] += stream(x, i + (size_t)j * WIDTH, WIDTH, 0) - origin;
    vec differences = {0};
    vec squares = {0};
    LANES(n - quads, sums[0] += only(get(x + quads + i, part) - origin, part););
    float first = origin + total((sums[0] + sums[1]) + (sums[2] + sums[3])) / (float)n;
    LANES(n, vec d = only(get(x + i, part) - first, part); differences += d; squares = fused(d, d, squares););
    float correction = total(differences) / (float)n;
    *mean = first + correction;
    const float v = total(squares) / (float)n - correction * correction;
    *variance = v < 0 ? 0 : v;  // a NaN stays one
}

INLINE void layer_norm_of(void *y, float *mean, float *rstd, const float *x, const float *weight, const float *bias,
                          size_t rows, size_t columns, float epsilon, int bf16) {
    for (size_t r = 0; r < rows; r++, x += columns) {
        float m, variance;
        moments(x, columns, &m, &variance);
        float s = (float)(1 / sqrt((double)variance + (double)epsilon));
        mean[r] = m;
        rstd[r] = s;
        LANES(columns, vec xhat = (get(x + i, part) - m) * s;
              keep(y, r * columns + i, fused(xhat, get(weight + i, part), get(bias + i, part)), part, bf16););
    }
}

static void layer_norm(void *y, float *mean, float *rstd, const float *x, const float *weight, const float *bias,
                       size_t rows, size_t columns, float epsilon, int bf16) {
    if (bf16)
        layer_norm_of(y, mean, rstd, x, weight, bias, rows, columns, epsilon, 1);
    else
        layer_norm_of(y, mean, rstd, x, weight, bias, rows, columns, epsilon, 0);
}

INLINE void layer_norm_backward_of(float *dx, const void *dy, const float *x, const float *mean, const float *rstd,
                                   const float *weight, const float *plus, size_t rows, size_t columns, int bf16) {
    for (size_t r = 0; r < rows; r++, x += columns, dx += columns) {
        const size_t first = r * columns;
        float m = mean[r], s = rstd[r];
        vec sum_g = {0};
        vec sum_gx = {0};
        LANES(columns, vec g = stream(dy, first + i, part, bf16) * get(weight + i, part); vec xhat = (stream(x, i, part, 0) - m) * s;
              sum_g += g; sum_gx = fused(g, xhat, sum_gx););  // a tail's missing elements have g = 0
        float mean_g = total(sum_g) / (float)columns, mean_gx = total(sum_gx) / (float)columns;
        LANES(columns, vec g = fetch(dy, first + i, part, bf16) * get(weight + i, part); vec xhat = (get(x + i, part) - m) * s;
              vec v = (g - mean_g - xhat * mean_gx) * s; if (plus) v += stream(plus, first + i, part, 0); put(dx + i, v, part););
    }
}

static void layer_norm_backward(float *dx, const void *dy, const float *x, const float *mean, const float *rstd,
                                const float *weight, const float *plus, size_t rows, size_t columns, int bf16) {
    if (bf16)
        layer_norm_backward_of(dx, dy, x, mean, rstd, weight, plus, rows, columns, 1);
    else
        layer_norm_backward_of(dx, dy, x, mean, rstd, weight, plus, rows, columns, 0);
}

// Sums over rows are of groups of ROWS rows in float and of groups in double, and are rounded once: in float, a million rows lose a
// hundredth of their sum. STRIP columns at a time, so that their sums stay in the first-level cache.
enum { ROWS = 8, STRIP = 512 };

// widen_into adds v to doubles.
INLINE void widen_into(double *to, vec v) {
    float lanes[WIDTH];
    dvec sum;
    store(lanes, v);
    for (int j = 0; j < WIDTH; j += WIDTH / 2) {
        memcpy(&sum, to + j, sizeof sum);
        sum += widen(lanes + j);
        memcpy(to + j, &sum, sizeof sum);
    }
}

// sum_group adds `rows` rows to sums.
INLINE void sum_group(double *sums, const void *x, size_t from, int rows, size_t columns, size_t stride, int bf16) {
    LANES(columns, vec s = {0};
          _Pragma("GCC unroll 8") for (int j = 0; j < rows; j++) s += fetch(x, from + (size_t)j * stride + i, part, bf16);
          widen_into(sums + i, s););
}

INLINE void sum_rows_of(float *sum, const void *x, size_t rows, size_t columns, size_t stride, int bf16) {
    for (size_t at = 0; at < columns; at += STRIP) {
        const size_t n = columns - at < STRIP ? columns - at : STRIP;
        double sums[STRIP] = {0};
        size_t r = 0;
        for (; r + ROWS <= rows; r += ROWS) sum_group(sums, x, r * stride + at, ROWS, n, stride, bf16);
        for (; r < rows; r++) sum_group(sums, x, r * stride + at, 1, n, stride, bf16);
        for (size_t i = 0; i < n; i++) sum[at + i] += (float)sums[i];
    }
}

static void sum_rows(float *sum, const void *x, size_t rows, size_t columns, size_t stride, int bf16) {
    if (bf16)
        sum_rows_of(sum, x, rows, columns, stride, 1);
    else
        sum_rows_of(sum, x, rows, columns, stride, 0);
}

// The gradients of a norm's weight and bias (2,STRIP) from `rows` rows; mean is NULL for a root-mean-square norm, which has no bias.
INLINE void weight_group(double *sums, const void *dy, const float *x, const float *mean, const float *rstd, size_t from, int rows,
                         size_t columns, size_t stride, int bf16) {
    LANES(columns, vec w = {0}; vec b = {0};
          _Pragma("GCC unroll 8") for (int j = 0; j < rows; j++) {
              const size_t at = from + (size_t)j * stride + i;
              vec d = fetch(dy, at, part, bf16);
              w = fused(d, (get(x + at, part) - (mean ? mean[j] : 0)) * rstd[j], w);
              b += d;
          } widen_into(sums + i, w);
          if (mean) widen_into(sums + STRIP + i, b););
}

INLINE void norm_backward_weight_of(float *dweight, float *dbias, const void *dy, const float *x, const float *mean, const float *rstd,
                                    size_t rows, size_t first, size_t columns, size_t stride, int bf16) {
#define GROUP(count) weight_group(sums, dy, x, mean ? mean + r : NULL, rstd + r, r * stride + first + at, count, n, stride, bf16)
    for (size_t at = 0; at < columns; at += STRIP) {
        const size_t n = columns - at < STRIP ? columns - at : STRIP;
        double sums[2 * STRIP] = {0};
        size_t r = 0;
        for (; r + ROWS <= rows; r += ROWS) GROUP(ROWS);
        for (; r < rows; r++) GROUP(1);
        for (size_t i = 0; i < n; i++) dweight[at + i] += (float)sums[i];
        for (size_t i = 0; mean && i < n; i++) dbias[at + i] += (float)sums[STRIP + i];
    }
#undef GROUP
}

static void norm_backward_weight(float *dweight, float *dbias, const void *dy, const float *x, const float *mean, const float *rstd,
                                 size_t rows, size_t first, size_t columns, size_t stride, int bf16) {
    if (bf16)
        norm_backward_weight_of(dweight, dbias, dy, x, mean, rstd, rows, first, columns, stride, 1);
    else
        norm_backward_weight_of(dweight, dbias, dy, x, mean, rstd, rows, first, columns, stride, 0);
}

// largest_of is the largest element, and any value where there is a NaN.
INLINE float largest_of(const float *x, size_t n) {
    vec tops[4] = {splat(x[0]), splat(x[0]), splat(x[0]), splat(x[0])};
    size_t i = 0;
    for (; i + 4 * WIDTH <= n; i += 4 * WIDTH)
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++) tops[j] = highest(load(x + i + j * WIDTH), tops[j]);
    for (; i + WIDTH <= n; i += WIDTH) tops[0] = highest(load(x + i), tops[0]);
    float top = largest(highest(highest(tops[0], tops[1]), highest(tops[2], tops[3])));
    for (; i < n; i++) top = x[i] > top ? x[i] : top;
    return top;
}

// checked_exps sets y = exp(x - shift) and returns the sum, y being NULL when only that is asked for. *poison becomes 0, or NaN when an
// element is not finite: exp(-inf) alone would hide one.
INLINE float checked_exps(float *y, const float *x, float shift, size_t n, float *poison) {
    vec sum = {0};
    vec bad = {0};
    LANES(n, vec v = get(x + i, part); vec e = only(vexp(v - shift), part); if (y) put(y + i, e, part); sum += e;
          bad = fused(v, splat(0), bad););
    *poison = total(bad);
    return total(sum);
}

static void cross_entropy(float *losses, float *dlogits, const float *logits, const int32_t *targets, size_t rows,
                          size_t vocabulary, float scale) {
    for (size_t r = 0; r < rows; r++) {
        const float *row = logits + r * vocabulary;
        float *drow = dlogits ? dlogits + r * vocabulary : NULL;
        if (targets[r] < 0) {
            losses[r] = 0;
            if (drow) memset(drow, 0, vocabulary * sizeof *drow);
            continue;
        }
        float top = largest_of(row, vocabulary), target = row[targets[r]], bad;
        float sum = checked_exps(drow, row, top, vocabulary, &bad);
        losses[r] = (float)((double)top - target + log(sum) + bad);
        if (!drow) continue;
        float factor = scale / sum;
        LANES(vocabulary, put(drow + i, get(drow + i, part) * factor, part););
        drow[targets[r]] -= scale;
    }
}

static void adam(float *p, const float *g, float *m, float *v, float *delta, size_t n, struct adam a) {
    const float rest1 = 1 - a.beta1, rest2 = 1 - a.beta2;
    LANES(n, vec before = stream(p, i, part, 0); vec grad = a.grad_scale * stream(g, i, part, 0) + a.coupled * before;
          vec mean = flushed(a.beta1 * stream(m, i, part, 0) + rest1 * grad);
          vec square = flushed(a.beta2 * stream(v, i, part, 0) + rest2 * (grad * grad));
          vec denominator = VECTOR_SQRT(square) / a.root + a.epsilon;
          vec after = a.keep * before - a.rate * (mean / denominator); put(p + i, after, part); put(m + i, mean, part);
          put(v + i, square, part); if (delta) put(delta + i, get(delta + i, part) + (after - before), part););
}

static void sgd(float *p, const float *g, float *m, float *delta, size_t n, struct sgd s) {
    LANES(n, vec before = get(p + i, part); vec grad = s.grad_scale * get(g + i, part) + s.weight_decay * before;
          vec update = grad; if (m) {
              if (!s.first) update = s.momentum * get(m + i, part) + grad;
              update = flushed(update);
              put(m + i, update, part);
              if (s.nesterov) update = grad + s.momentum * update;
          } vec after = before - s.learning_rate * update;
          put(p + i, after, part); if (delta) put(delta + i, get(delta + i, part) + (after - before), part););
}

#include "transformer_body.h"
#include "attention_body.h"
#include "recurrent_body.h"
#include "decode_body.h"

const struct kernels TABLE = {
    .name = TABLE_NAME,
    .scale = scale,
    .axpy = axpy,
    .lerp = lerp,
    .mul = mul,
    .add = add,
    .add_mixed = add_mixed,
    .convert = convert,
    .dot = dot,
    .gelu = gelu,
    .gelu_backward = gelu_backward,
    .layer_norm = layer_norm,
    .layer_norm_backward = layer_norm_backward,
    .cross_entropy = cross_entropy,
    .sum_rows = sum_rows,
    .norm_backward_weight = norm_backward_weight,
    .adam = adam,
    .sgd = sgd,
    .attention_scratch = attention_scratch,
    .attention_backward_scratch = attention_backward_scratch,
    .attention_sums = attention_sums,
    .attention = attention,
    .attention_backward = attention_backward,
    .attention_gradients = attention_gradients,
    .transformer = TRANSFORMER_KERNELS,
    .recurrent = RECURRENT_KERNELS,
    .decode = DECODE_KERNELS,
};
