// Operands of operations that are more than an address and a size.
#ifndef AVG_OPERANDS_H
#define AVG_OPERANDS_H

#include <stddef.h>
#include <stdint.h>

// An operand whose elements are float or bf16.
struct elements {
    void *data;
    int bf16;
};

// The functions of device.Function in Go, in that order.
enum { AVG_GELU, AVG_GELU_ERF, AVG_TANH, AVG_RELU };

// Elements whose draw lies below threshold are dropped, the others scaled.
struct dropout {
    uint64_t key;
    uint32_t threshold;
    float scale;
};

// Rotary position embedding of rows (heads,s); row r is at position r % t.
struct rotation {
    size_t t, heads, s;
    int inverse;
};

struct adam {
    float beta1, beta2, epsilon, grad_scale, coupled, keep, rate, root;
};

struct sgd {
    float learning_rate, momentum, weight_decay, grad_scale;
    int nesterov, first;
};

struct asgd {
    float learning_rate, weight_decay, grad_scale, share;
};

// The operands that every step has beside its parameters and its state. All but g may be NULL.
struct stepped {
    const float *g;
    float *delta;
    void *copy16;
    double *total;
};

// Operands and shape of an attention as device.Attention has them. All but lse and mask are bf16 or float. Absent ones are
// NULL: the backward's in a forward, lse when no backward follows, mask.
struct attention {
    char *out, *dq, *dk, *dv;
    const char *q, *k, *v, *dout;
    float *lse;
    const int32_t *mask;
    size_t b, t, h, kv, s, q_stride, kv_stride;
    size_t window;  // positions that a query sees at most; 0: all before it
    int bf16, bidirectional;
    struct dropout dropout;  // of probabilities; none when its threshold is 0
    uint64_t first;          // the draw of the first
};

// An attention over caches: operands of bfloat16 numbers when bf16 is not 0. Shapes as in device.CachedAttention in Go.
struct cached_attention {
    char *out;
    const char *q, *k, *v;
    size_t b, t, h, kv, s, capacity, past, q_stride, window;
    int bf16;
};

// The most rows of A that a product of few rows takes at once: each element of B is read once for all of them.
enum { MOST_ROWS = 4 };

// A product C (m,n) = [C +] A (m,k) B [+ bias] with few rows: B is (k,n), or transposed (n,k).
struct few_rows {
    struct elements c, a, b;
    const float *bias;
    size_t m, n, k;
    int transposed, accumulate;
};

// A gradient of a weight is a product C (m,n) = [C +] A^T B with A (k,m) and B (k,n), both float or both bf16.
struct gradient {
    float *c;
    const void *a, *b;
    size_t m, n, k;
    int accumulate, bf16;
};

// Operands of an LSTM and its backward as in device.LSTM; weight and previous are bf16 where the products were made for it.
struct lstm {
    float *out, *gates, *cells;
    void *previous;
    const void *weight;
    const float *before;
    const int32_t *mask;
    float *dgates, *carry;
    const float *dout;
    size_t out_stride;
    int reverse;
};

// The shape of a norm of images, whose rows are of c channels.
struct group_norm {
    size_t b, p, c, groups;
    float epsilon;
    int relu;
};

struct pool {
    size_t b, height, width, c, oh, ow, kernel, stride, padding;
};

#endif
