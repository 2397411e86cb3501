//go:build onednn && cgo && linux && amd64

#include <omp.h>
#include <pmmintrin.h>
#include <string.h>

#include "device.h"
#include "parts.h"

const struct kernels *avg_kernels(const char *name) {
    __builtin_cpu_init();
    struct {
        const struct kernels *kernels;
        int runs;
    } sets[] = {
        {&avg_kernels_avx512, __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                                  __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")},
        {&avg_kernels_avx2, __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")},
        {&avg_kernels_sse2, 1},
    };
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++)
        if (sets[i].runs && (!name || strcmp(name, sets[i].kernels->name) == 0)) return sets[i].kernels;
    return NULL;
}

int avg_open(struct avg_device *d, int threads) {
    memset(d, 0, sizeof *d);
    d->kernels = avg_kernels(NULL);
    d->threads = threads;
    // VDPBF16PS has twice the products of a float multiply-add. AMD's cores start as many of the one as of the other in a cycle,
    // Intel's a quarter as many. Tiles (AMX) have 16 times the products of a float instruction.
    const dnnl_cpu_isa_t isa = dnnl_get_effective_cpu_isa();
    d->bf16_pairs = isa == dnnl_cpu_isa_avx512_core_bf16 && __builtin_cpu_is("amd");
    d->bf16_units = isa == dnnl_cpu_isa_avx512_core_amx || d->bf16_pairs;
    dnnl_status_t status = dnnl_engine_create(&d->engine, dnnl_cpu, 0);
    if (status == dnnl_success) status = dnnl_stream_create(&d->stream, d->engine, dnnl_stream_default_flags);
    if (status != dnnl_success) avg_close(d);
    return status;
}

void avg_close(struct avg_device *d) {
    if (d->stream) dnnl_stream_destroy(d->stream);
    if (d->engine) dnnl_engine_destroy(d->engine);
    if (d->scratch) avg_free(d->scratch, d->scratch_bytes);
    memset(d, 0, sizeof *d);
}

int avg_denormals(int keep) {
    const unsigned before = _mm_getcsr(), zeros = _MM_FLUSH_ZERO_ON | _MM_DENORMALS_ZERO_ON;
    _mm_setcsr(keep ? before & ~zeros : before | zeros);
    return !(before & zeros);
}

void *avg_reserve(struct avg_device *d, size_t bytes) {
    if (d->scratch && bytes <= d->scratch_bytes) return d->scratch;
    void *grown = avg_allocate(bytes);
    if (!grown) return NULL;
    if (d->scratch) avg_free(d->scratch, d->scratch_bytes);
    d->scratch = grown;
    d->scratch_bytes = bytes;
    return grown;
}

void avg_move(struct avg_device *d, char *y, const char *x, size_t bytes) {
    PARTS(bytes, 64, 2 * bytes, memmove(y + at.from, x + at.from, at.n););
}

void avg_zero(struct avg_device *d, char *x, size_t bytes) {
    PARTS(bytes, 64, bytes, memset(x + at.from, 0, at.n););
}

// Tiles keep both sides in the first-level cache.
void avg_transpose(struct avg_device *d, float *y, const float *x, size_t n, size_t rows, size_t columns) {
    enum { TILE = 32 };
    const size_t bands = (rows + TILE - 1) / TILE;
    PARTS(n * bands, 1, 8 * n * rows * columns, for (size_t i = at.from; i < at.from + at.n; i++) {
        const float *from = x + i / bands * rows * columns;
        float *to = y + i / bands * rows * columns;
        const size_t r0 = i % bands * TILE, r1 = r0 + TILE < rows ? r0 + TILE : rows;
        for (size_t c0 = 0; c0 < columns; c0 += TILE)
            for (size_t c = c0; c < c0 + TILE && c < columns; c++)
                for (size_t r = r0; r < r1; r++) to[c * rows + r] = from[r * columns + c];
    });
}

void avg_cache_append(struct avg_device *d, char *cache, const char *x, size_t b, size_t t, size_t kv, size_t s, size_t stride, size_t capacity,
                      size_t past, size_t size) {
    PARTS(b * kv, 1, 2 * b * kv * t * s * size, for (size_t head = at.from; head < at.from + at.n; head++) {
        char *to = cache + (head * capacity + past) * s * size;
        const char *from = x + (head / kv * t * stride + head % kv * s) * size;
        for (size_t r = 0; r < t; r++, to += s * size, from += stride * size) memcpy(to, from, s * size);
    });
}
