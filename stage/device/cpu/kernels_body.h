// The kernels, in terms of the vectors that the including file defines: for each operation of operations.h a function that cuts it over the
// threads. No include guard: each kernels_*.c compiles it once, for its instruction set.

#include <math.h>
#include <string.h>

#include "device.h"
#include "parts.h"
#include "vector.h"

// MAP runs a block for every vector of n elements, as SPAN does; `bytes` is what it moves for each of them.
#define MAP(n, bytes, ...) PARTS(n, 2 * LINE, (bytes) * (n), SPAN(at.from, at.from + at.n, __VA_ARGS__);)

// scaled sets y = a x.
static void scaled(float *y, const float *x, float a, size_t n) {
    LANES(n, put(y + i, get(x + i, part) * a, part););
}

// added sets out = a + b.
static void added(float *out, const float *a, const float *b, size_t n) {
    LANES(n, put(out + i, get(a + i, part) + get(b + i, part), part););
}

// converted sets elements [from, from + n) of y to those of x.
static void converted(struct elements y, struct elements x, size_t from, size_t n) {
    if (y.bf16 == x.bf16)
        memcpy(element(y, from), element(x, from), n * (y.bf16 ? 2 : 4));
    else
        TYPED(narrow, y.bf16, SPAN(from, from + n, keep(y.data, i, stream(x.data, i, part, !narrow), part, narrow);));
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

static void scale(struct avg_device *d, float *x, float a, size_t n) {
    PARTS(n, LINE, 8 * n, scaled(x + at.from, x + at.from, a, at.n););
}

static void axpy(struct avg_device *d, float *y, float a, const float *x, size_t n) {
    MAP(n, 12, put(y + i, get(y + i, part) + a * get(x + i, part), part););
}

static void lerp(struct avg_device *d, float *y, float a, const float *x, size_t n) {
    MAP(n, 12, vec from = get(y + i, part); put(y + i, from + a * (get(x + i, part) - from), part););
}

static void mul(struct avg_device *d, float *y, const float *x, size_t n) {
    MAP(n, 12, put(y + i, get(y + i, part) * get(x + i, part), part););
}

static void add(struct avg_device *d, struct elements out, struct elements a, struct elements b, size_t n) {
    TYPED(ob, out.bf16, TYPED(ab, a.bf16, TYPED(bb, b.bf16,
          MAP(n, 12, keep(out.data, i, stream(a.data, i, part, ab) + stream(b.data, i, part, bb), part, ob);))));
}

static void convert(struct avg_device *d, struct elements y, struct elements x, size_t n) {
    PARTS(n, 2 * LINE, 8 * n, converted(y, x, at.from, at.n););
}

static void copy_columns(struct avg_device *d, float *y, const float *x, size_t rows, size_t columns, size_t y_stride, size_t x_stride, int add) {
    PARTS(rows, 1, 8 * rows * columns, for (size_t r = at.from; r < at.from + at.n; r++) {
        float *to = y + r * y_stride;
        if (add)
            added(to, to, x + r * x_stride, columns);
        else
            memcpy(to, x + r * x_stride, columns * sizeof(float));
    });
}

static void squared_norm(struct avg_device *d, double *total, const float *x, size_t n) {
    BLOCKS(n, 4, total, sum = dot(x + at.from, x + at.from, at.n););
}

// gelu(x) = x / (1 + exp(-2u)) with u = sqrt(2/pi) (x + 0.044715 x^3), which is the tanh form rearranged.
#define GELU_SCALE 0.7978845608f
#define GELU_CUBIC 0.044715f

// gelu_sigmoid is 1 / (1 + exp(-2u)).
INLINE vec gelu_sigmoid(vec x) {
    vec u = x * fused(x * x, splat(-2 * GELU_SCALE * GELU_CUBIC), splat(-2 * GELU_SCALE));
    return 1.0f / (1.0f + vexp(u));
}

// gelu_slope is its derivative, s + s (1 - s) x d(2u)/dx. Beyond 30 it is 0 or 1 to the last bit, and x d(2u)/dx may overflow.
INLINE vec gelu_slope(vec x) {
    vec s = gelu_sigmoid(x), near = highest(splat(-30.0f), lowest(splat(30.0f), x));
    vec du = fused(near * near, splat(6 * GELU_SCALE * GELU_CUBIC), splat(2 * GELU_SCALE));
    return fused(near * du, s * (1.0f - s), s);
}

// normal returns the standard normal distribution's cumulative probability at x, within 1e-7, and sets *density: Abramowitz
// and Stegun 1964, formula 26.2.17 with the coefficients of 7.1.26.
INLINE vec normal(vec x, vec *density) {
    vec z = highest(x, -x) * 0.70710678f;  // |x| / sqrt(2)
    vec t = 1.0f / fused(z, splat(0.3275911f), splat(1));
    vec p = splat(1.061405429f);
    p = fused(p, t, splat(-1.453152027f));
    p = fused(p, t, splat(1.421413741f));
    p = fused(p, t, splat(-0.284496736f));
    p = fused(p, t, splat(0.254829592f));
    vec e = vexp(-z * z);
    vec tail = 0.5f * p * t * e;  // the probability beyond |x|
    *density = e * 0.39894228f;
    ivec negative = x < 0.0f;
    return (vec)(((ivec)tail & negative) | ((ivec)(1.0f - tail) & ~negative));
}

INLINE vec gelu_erf(vec x) {
    vec density;
    return x * normal(x, &density);
}

INLINE vec gelu_erf_slope(vec x) {
    vec density, p = normal(x, &density);
    return fused(x, density, p);
}

static void unary(struct avg_device *d, int function, struct elements y, struct elements x, size_t n) {
#define EACH(bytes, ...)                                                                                                          \
    TYPED(bf16, x.bf16, MAP(n, bytes, vec v = stream(x.data, i, part, bf16); keep(y.data, i, __VA_ARGS__, part, bf16);)); \
    break
    switch (function) {
        case AVG_GELU: EACH(16, v * gelu_sigmoid(v));
        case AVG_GELU_ERF: EACH(16, gelu_erf(v));
        case AVG_TANH: EACH(16, vtanh(v));
        case AVG_RELU: EACH(8, positive(v));
    }
#undef EACH
}

// x is what went in, for tanh what came out.
static void unary_backward(struct avg_device *d, int function, struct elements dx, struct elements dy, struct elements x, size_t n) {
#define EACH(bytes, ...)                                                                                                          \
    TYPED(bf16, x.bf16, MAP(n, bytes, vec v = stream(x.data, i, part, bf16); vec g = stream(dy.data, i, part, bf16);              \
                            keep(dx.data, i, __VA_ARGS__, part, bf16);));                                                         \
    break
    switch (function) {
        case AVG_GELU: EACH(24, g * gelu_slope(v));
        case AVG_GELU_ERF: EACH(24, g * gelu_erf_slope(v));
        case AVG_TANH: EACH(12, g * (1.0f - v * v));
        case AVG_RELU: EACH(12, where_positive(v, g));
    }
#undef EACH
}

static void swiglu(struct avg_device *d, struct elements y, struct elements gate, struct elements up, size_t n) {
    TYPED(bf16, y.bf16, MAP(n, 20, vec g = fetch(gate.data, i, part, bf16);
                            keep(y.data, i, g * sigmoid(g) * fetch(up.data, i, part, bf16), part, bf16);));
}

static void swiglu_backward(struct avg_device *d, struct elements dgate, struct elements dup, struct elements dy, struct elements gate,
                            struct elements up, size_t n) {
    TYPED(bf16, dy.bf16, MAP(n, 28, vec g = fetch(gate.data, i, part, bf16); vec u = fetch(up.data, i, part, bf16);
                             vec v = fetch(dy.data, i, part, bf16); vec s = sigmoid(g);
                             keep(dgate.data, i, v * u * s * fused(g, 1.0f - s, splat(1)), part, bf16);
                             keep(dup.data, i, v * g * s, part, bf16);));
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

// mean_of is the mean of x.
static float mean_of(const float *x, size_t n) {
    vec sum = {0};
    LANES(n, sum += get(x + i, part););
    return total(sum) / (float)n;
}

// With m the mean logit and t the target's, smoothing makes the loss grow by smoothing (t - m), the gradient by smoothing (onehot - 1/V).
static void cross_entropy_row(float *loss, float *drow, const float *row, int32_t target, size_t n, float scale, float smoothing) {
    if (target < 0) {
        *loss = 0;
        if (drow) memset(drow, 0, n * sizeof *drow);
        return;
    }
    const float mean = smoothing > 0 ? mean_of(row, n) : 0, own = row[target], top = largest_of(row, n);
    float bad, sum = checked_exps(drow, row, top, n, &bad);
    *loss = (float)((double)top - own + log(sum) + bad);
    if (smoothing > 0) *loss += smoothing * (own - mean);
    if (!drow) return;
    scaled(drow, drow, scale / sum, n);
    drow[target] -= scale;
    if (!(smoothing > 0)) return;
    const float spread = scale * smoothing / (float)n;
    LANES(n, put(drow + i, get(drow + i, part) - spread, part););
    drow[target] += scale * smoothing;
}

static void cross_entropy(struct avg_device *d, float *losses, float *dlogits, const float *logits, const int32_t *targets, size_t rows,
                          size_t vocabulary, float scale, float smoothing) {
    PARTS(rows, 1, 16 * rows * vocabulary, for (size_t r = at.from; r < at.from + at.n; r++) {
        float *drow = dlogits ? dlogits + r * vocabulary : NULL;
        cross_entropy_row(losses + r, drow, logits + r * vocabulary, targets[r], vocabulary, scale, smoothing);
    });
}

// STEP is a step of an optimizer: the code computes `after` from `before`, of p, for a vector. load is stream where that pays.
// Coefficients are copied, so that compilers may keep them in registers.
#define STEP(bytes, load, ...)                                                                              \
    BLOCKS(n, bytes, given.total, const struct stepped s = given; const __auto_type a = coefficients;        \
           SPAN(at.from, at.from + at.n, const vec before = load(p, i, part, 0);                   \
                const vec g = a.grad_scale * load(s.g, i, part, 0); vec after;                      \
                __VA_ARGS__ put(p + i, after, part);                                                  \
                if (s.delta) put(s.delta + i, get(s.delta + i, part) + (after - before), part););     \
           if (s.copy16) converted((struct elements){s.copy16, 1}, (struct elements){p, 0}, at.from, at.n); \
           if (s.total) sum = dot(s.g + at.from, s.g + at.from, at.n);)

static void adam(struct avg_device *d, float *p, float *m, float *v, struct stepped given, size_t n, struct adam coefficients) {
    const float rest1 = 1 - coefficients.beta1, rest2 = 1 - coefficients.beta2;
    STEP(28, stream, vec grad = g + a.coupled * before; vec mean = flushed(a.beta1 * stream(m, i, part, 0) + rest1 * grad);
         vec square = flushed(a.beta2 * stream(v, i, part, 0) + rest2 * (grad * grad));
         after = a.keep * before - a.rate * (mean / (VECTOR_SQRT(square) / a.root + a.epsilon)); put(m + i, mean, part);
         put(v + i, square, part););
}

static void sgd(struct avg_device *d, float *p, float *m, struct stepped given, size_t n, struct sgd coefficients) {
    STEP(20, fetch, vec grad = g + a.weight_decay * before; vec update = grad; if (m) {
        if (!a.first) update = a.momentum * get(m + i, part) + grad;
        update = flushed(update);
        put(m + i, update, part);
        if (a.nesterov) update = grad + a.momentum * update;
    } after = before - a.learning_rate * update;);
}

static void asgd(struct avg_device *d, float *p, float *state, struct stepped given, size_t n, struct asgd coefficients) {
    STEP(24, fetch, vec offset = get(state + i, part); vec ahead = offset - a.learning_rate * (g + a.weight_decay * (before + offset));
         vec move = a.share * ahead; after = before + move; put(state + i, flushed(ahead - move), part););
}

#include "rows_body.h"
#include "transformer_body.h"
#include "product_body.h"
#include "gradient_body.h"
#include "strips_body.h"
#include "attention_body.h"
#include "decode_body.h"
#include "recurrent_body.h"
#include "vision_body.h"

#define OPERATION(result, name_, parameters, arguments) .name_ = name_,
const struct kernels TABLE = {
    .name = TABLE_NAME,
#include "operations.h"
};
