// What one thread runs. One table per instruction set; the names and operands are those of device.Device in Go.
#ifndef AVG_KERNELS_H
#define AVG_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#include "decode.h"
#include "recurrent.h"
#include "transformer.h"

#ifdef __clang__
#pragma STDC FP_CONTRACT OFF  // Clang fuses even in strict ISO mode, GCC does not
#endif

struct adam {
    float beta1, beta2, epsilon, grad_scale, coupled, keep, rate, root;
};

// The operands that every step has beside its parameters and its state. All but g may be NULL.
struct stepped {
    const float *g;
    float *delta;
    void *copy16;
    double *total;
};

struct sgd {
    float learning_rate, momentum, weight_decay, grad_scale;
    int nesterov, first;
};

// Elements [from, to).
struct range {
    size_t from, to;
};

// Attention takes blocks of queries, and tiles of keys, to both of which a sequence is cut: what a block computes with a tile stays in the
// caches. A tile has whole blocks of rows, so that the queries of a tile see the first key of it or none.
enum { ROW_BLOCK = 24, KEY_TILE = 384 };

// equal_rows is how many rows each part but the last has where t are cut into at most so many, of whole blocks.
static inline size_t equal_rows(size_t t, size_t parts) { return (t + parts * ROW_BLOCK - 1) / (parts * ROW_BLOCK) * ROW_BLOCK; }

static inline size_t key_rows(size_t t) { return equal_rows(t, (t + KEY_TILE - 1) / KEY_TILE); }

static inline size_t key_tiles(size_t t) { return (t + key_rows(t) - 1) / key_rows(t); }

// rows_at are the rows of the part with this index.
static inline struct range rows_at(size_t index, size_t rows, size_t end) {
    return (struct range){index * rows, (index + 1) * rows < end ? (index + 1) * rows : end};
}

// The query heads of one sample that share a head of keys: `heads` of q, dq, out and dout, S elements after each other, and
// one of k, v, dk and dv. Each head is (T,S), in rows `q_stride` (q, dq), `kv_stride` (k, v, dk, dv) or `out_stride` elements
// apart.
struct heads {
    const void *q, *k, *v;
    void *dq, *dk, *dv;
    void *out;
    const void *dout;
    float *lse;           // (heads,T), or NULL when no backward follows
    const int32_t *mask;  // (T), or NULL: keys where it is 0 are not seen
    size_t heads, t, s, q_stride, kv_stride, out_stride;
    size_t window;  // keys that a query sees at most; 0: all before it
    int bf16;       // what all are but lse and mask; else float
    int paired;     // bf16 is multiplied in pairs where the kernels have them; else widened first
    int bidirectional;
    struct dropout dropout;  // of probabilities; none when its threshold is 0
    uint64_t first;          // the draw of the first; those of a head are (T,T)
};

struct kernels {
    const char *name;

    void (*scale)(float *x, float a, size_t n);
    void (*axpy)(float *y, float a, const float *x, size_t n);
    void (*lerp)(float *y, float a, const float *x, size_t n);
    void (*mul)(float *y, const float *x, size_t n);
    void (*add)(float *out, const float *a, const float *b, size_t n);
    // Operands of type void are bf16 where the flag of the same name says so, else float; elements [from, from + n).
    void (*add_mixed)(void *out, const void *a, const void *b, size_t from, size_t n, int out_bf16, int a_bf16, int b_bf16);
    void (*convert)(void *y, const void *x, size_t from, size_t n, int y_bf16, int x_bf16);
    double (*dot)(const float *x, const float *y, size_t n);

    void (*gelu)(void *y, const void *x, size_t from, size_t n, int bf16);
    void (*gelu_backward)(void *dx, const void *dy, const void *x, size_t from, size_t n, int bf16);

    // Rows of `columns` elements. y and dy are bf16 where the flag says so, else float. plus may be NULL.
    void (*layer_norm)(void *y, float *mean, float *rstd, const float *x, const float *weight, const float *bias,
                       size_t rows, size_t columns, float epsilon, int bf16);
    void (*layer_norm_backward)(float *dx, const void *dy, const float *x, const float *mean, const float *rstd,
                                const float *weight, const float *plus, size_t rows, size_t columns, int bf16);
    void (*cross_entropy)(float *losses, float *dlogits, const float *logits, const int32_t *targets, size_t rows,
                          size_t vocabulary, float scale);

    // `columns` columns of a matrix whose rows lie `stride` apart.
    void (*sum_rows)(float *sum, const void *x, size_t rows, size_t columns, size_t stride, int bf16);
    // The same from column `first` on; dweight and dbias begin with it. A root-mean-square norm has no mean and no dbias.
    void (*norm_backward_weight)(float *dweight, float *dbias, const void *dy, const float *x, const float *mean, const float *rstd,
                                 size_t rows, size_t first, size_t columns, size_t stride, int bf16);

    void (*adam)(float *p, const float *g, float *m, float *v, float *delta, size_t n, struct adam a);
    void (*sgd)(float *p, const float *g, float *m, float *delta, size_t n, struct sgd s);

    // Scratch floats of a thread, for so many queries of a group of heads or for a backward; and those for the sums of the group's backward.
    size_t (*attention_scratch)(size_t t, size_t queries, size_t heads, size_t s);
    size_t (*attention_backward_scratch)(size_t t, size_t s);
    size_t (*attention_sums)(size_t t, size_t heads, size_t s);
    void (*attention)(const struct heads *h, struct range queries, float *scratch);
    // The first adds to the sums, 0 at first, what tiles of queries have to do with a tile of keys. The second writes the gradients.
    void (*attention_backward)(const struct heads *h, size_t key_tile, struct range query_tiles, float *sums, float *scratch);
    void (*attention_gradients)(const struct heads *h, struct range rows, const float *sums);

    struct transformer_kernels transformer;
    struct recurrent_kernels recurrent;
    struct decode_kernels decode;
};

extern const struct kernels avg_kernels_avx512, avg_kernels_avx2, avg_kernels_sse2;

#endif
