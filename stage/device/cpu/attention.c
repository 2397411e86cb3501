//go:build onednn && cgo && linux && amd64

// How an attention is cut over the threads of its device. No result depends on their number.

#include <omp.h>
#include <string.h>

#include "device.h"
#include "parts.h"

static size_t whole_lines(size_t floats) { return (floats + LINE - 1) / LINE * LINE; }

int avg_reserve(struct avg_device *d, size_t floats) {
    size_t bytes = floats * sizeof(float);
    if (bytes <= d->scratch_bytes) return 0;
    float *grown = avg_allocate(bytes);
    if (!grown) return -1;
    if (d->scratch) avg_free(d->scratch, d->scratch_bytes);
    d->scratch = grown;
    d->scratch_bytes = bytes;
    return 0;
}

// group_at is the group of query heads with this index, counted over all samples.
static struct heads group_at(const struct avg_device *d, const struct attention *x, size_t index) {
    const size_t b = index / x->kv, kv = index % x->kv, heads = x->h / x->kv, size = x->bf16 ? 2 : sizeof(float);
    const size_t q = (b * x->t * x->q_stride + kv * heads * x->s) * size;
    const size_t k = (b * x->t * x->kv_stride + kv * x->s) * size;
    const size_t out = (b * x->t * x->h * x->s + kv * heads * x->s) * size;
    return (struct heads){
        .q = x->q + q, .k = x->k + k, .v = x->v + k,
        .dq = x->dq ? x->dq + q : NULL, .dk = x->dk ? x->dk + k : NULL, .dv = x->dv ? x->dv + k : NULL,
        .out = x->out + out, .dout = x->dout ? x->dout + out : NULL,
        .lse = x->lse ? x->lse + (b * x->h + kv * heads) * x->t : NULL, .mask = x->mask ? x->mask + b * x->t : NULL,
        .heads = heads, .t = x->t, .s = x->s, .q_stride = x->q_stride, .kv_stride = x->kv_stride,
        .out_stride = x->h * x->s, .window = x->window, .bf16 = x->bf16, .paired = d->bf16_pairs, .bidirectional = x->bidirectional,
        .dropout = x->dropout, .first = x->first + (b * x->h + kv * heads) * x->t * x->t,
    };
}

// query_rows is how many queries of each head of a group are a thread's work at a time: so many that packing the keys for them does not
// count and so few that their sums stay in the cache; fewer where threads would have nothing to do.
static size_t query_rows(const struct attention *x, size_t threads) {
    enum { FEW = 96, MANY = 960 };
    const size_t groups = x->b * x->kv, heads = x->h / x->kv, most = (x->t * heads + FEW - 1) / FEW;
    const size_t busy = threads == 1 ? 1 : (4 * threads + groups - 1) / groups, parts = (x->t * heads + MANY - 1) / MANY;
    return equal_rows(x->t, parts > busy ? parts : busy < most ? busy : most);
}

int avg_attention(struct avg_device *d, struct attention x) {
    const size_t heads = x.h / x.kv, groups = x.b * x.kv, rows = query_rows(&x, (size_t)d->threads), parts = (x.t + rows - 1) / rows;
    const size_t floats = whole_lines(d->kernels->attention_scratch(x.t, rows, heads, x.s));
    if (avg_reserve(d, floats * (size_t)d->threads)) return -1;
#pragma omp parallel for num_threads(d->threads) schedule(dynamic) if (groups * parts > 1)
    for (size_t i = 0; i < groups * parts; i++) {
        const struct heads group = group_at(d, &x, i % groups);
        const struct range queries = rows_at(parts - 1 - i / groups, rows, x.t);  // the last first: they see the most keys
        d->kernels->attention(&group, queries, d->scratch + (size_t)omp_get_thread_num() * floats);
    }
    return 0;
}

// backward_alone runs the backward of a group on the calling thread: see backward_together.
static void backward_alone(const struct kernels *k, const struct heads *h, float *sums, float *scratch) {
    const size_t tiles = key_tiles(h->t);
    memset(sums, 0, k->attention_sums(h->t, h->heads, h->s) * sizeof *sums);
    for (size_t key = tiles; key-- > 0;) k->attention_backward(h, key, (struct range){key, tiles}, sums, scratch);
    for (size_t key = tiles; key-- > 0 && h->bidirectional;) k->attention_backward(h, key, (struct range){0, key}, sums, scratch);
    k->attention_gradients(h, (struct range){0, h->t}, sums);
}

// backward_together runs it on all threads, in waves: wave w has the queries of tile (key + w) % tiles meet each tile of keys. So a
// wave's pairs share no sum, and each sum gets its terms in one order, which is also that of backward_alone.
static void backward_together(struct avg_device *d, const struct heads *h, float *sums, float *scratch, size_t floats) {
    const struct kernels *k = d->kernels;
    const size_t tiles = key_tiles(h->t);
    memset(sums, 0, k->attention_sums(h->t, h->heads, h->s) * sizeof *sums);
#pragma omp parallel num_threads(d->threads)
    {
        float *own = scratch + (size_t)omp_get_thread_num() * floats;
        for (size_t wave = 0; wave < tiles; wave++)
#pragma omp for schedule(dynamic)
            for (size_t key = 0; key < (h->bidirectional ? tiles : tiles - wave); key++) {
                const size_t query = (key + wave) % tiles;
                k->attention_backward(h, key, (struct range){query, query + 1}, sums, own);
            }
#pragma omp for
        for (size_t tile = 0; tile < tiles; tile++) k->attention_gradients(h, rows_at(tile, key_rows(h->t), h->t), sums);
    }
}

// As many groups as threads run at once, each on one; groups that are left over run one by one on all.
int avg_attention_backward(struct avg_device *d, struct attention x) {
    const size_t heads = x.h / x.kv, groups = x.b * x.kv, threads = (size_t)d->threads;
    const size_t floats = whole_lines(d->kernels->attention_backward_scratch(x.t, x.s));
    const size_t sums = whole_lines(d->kernels->attention_sums(x.t, heads, x.s));
    const size_t alone = key_tiles(x.t) == 1 ? groups : groups - groups % threads;
    if (avg_reserve(d, (sums + floats) * threads)) return -1;
#pragma omp parallel for num_threads(d->threads) schedule(static) if (threads > 1 && alone > 1)
    for (size_t i = 0; i < alone; i++) {
        const struct heads group = group_at(d, &x, i);
        float *own = d->scratch + (size_t)omp_get_thread_num() * (sums + floats);
        backward_alone(d->kernels, &group, own, own + sums);
    }
    for (size_t i = alone; i < groups; i++) {
        const struct heads group = group_at(d, &x, i);
        backward_together(d, &group, d->scratch, d->scratch + sums, floats);
    }
    return 0;
}
