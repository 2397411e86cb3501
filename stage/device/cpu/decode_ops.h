// The operations of decode.h on a whole device; see device.h.
#ifndef AVG_DECODE_OPS_H
#define AVG_DECODE_OPS_H

#include "device.h"

// A product C (m,n) = [C +] A (m,k) B [+ bias] with few rows: B is (k,n), or transposed (n,k).
struct few_rows {
    struct elements c, a, b;
    const float *bias;
    size_t m, n, k;
    int transposed, accumulate;
};

// An attention over caches: operands of bfloat16 numbers when bf16 is not 0. Shapes as in device.CachedAttention in Go.
struct cached_attention {
    char *out;
    const char *q, *k, *v;
    size_t b, t, h, kv, s, capacity, past, q_stride, window;
    int bf16;
};

// Both return 0, or -1 where there is no memory for scratch.
int avg_few_rows(struct avg_device *d, struct few_rows p);
int avg_cached_attention(struct avg_device *d, struct cached_attention x);

// Rows of `kv` heads of s elements of `size` bytes, `stride` elements apart, to positions past, ... of a cache (b,kv,capacity,s).
void avg_cache_append(struct avg_device *d, char *cache, const char *x, size_t b, size_t t, size_t kv, size_t s, size_t stride, size_t capacity,
                      size_t past, size_t size);

#endif
