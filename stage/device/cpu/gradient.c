//go:build onednn && cgo && linux && amd64

// Gradients of weights, C (m,n) = [C +] A^T B with A (k,m) and B (k,n), where k, the rows of a micro-batch, is small. Most of what moves
// then is C, which is in memory: a tile of it is asked for while the one before is computed, which oneDNN does not do.
//
// A panel of A and a strip of B are packed: for floats element (i, column) lies at i * columns + column; of bf16, pairs of rows lie
// together, as VDPBF16PS takes them.

#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma")
#include <immintrin.h>
#include <string.h>

#include "parts.h"

enum { WIDTH = 16, ROWS = 6, VECTORS = 4, STRIP = VECTORS * WIDTH };

// first is a mask of the first n lanes, of all where n is more.
static inline __mmask16 first(size_t n) { return n < WIDTH ? (__mmask16)((1u << n) - 1) : 0xffff; }

// packed_rows is how many rows of words k rows take.
static size_t packed_rows(size_t k, int bf16) { return bf16 ? (k + 1) / 2 : k; }

// row loads `part` elements of row i of x as they are packed: floats, or pairs of bf16 of rows 2i and 2i + 1; k is the number of rows.
static inline __m512i row(const void *x, size_t i, size_t k, size_t stride, size_t at, size_t part, int bf16) {
    const __mmask16 mask = first(part);
    if (!bf16) return _mm512_maskz_loadu_epi32(mask, (const float *)x + i * stride + at);
    const uint16_t *p = (const uint16_t *)x + 2 * i * stride + at;
    const __m512i low = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, p));
    if (2 * i + 1 == k) return low;
    return _mm512_or_si512(low, _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, p + stride)), 16));
}

// pack copies `columns` columns of x (k, stride), from column `from` on, to packed, rows `width` apart; the rest up to width is 0.
static inline void pack(int32_t *packed, const void *x, size_t k, size_t stride, size_t from, size_t columns, size_t width, int bf16) {
    const size_t rows = packed_rows(k, bf16);
    for (size_t c = 0; c < width; c += WIDTH) {
        const size_t part = c < columns ? columns - c : 0;
        for (size_t i = 0; i < rows; i++)
            _mm512_mask_storeu_epi32(packed + i * width + c, first(width - c), row(x, i, k, stride, from + c, part, bf16));
    }
}

// tile sets or adds to `rows` rows of a strip of C the product of a panel and a strip, and asks for the tile that comes next.
static inline __attribute__((always_inline)) void tile(int rows, size_t k, const int32_t *a, const int32_t *b, float *c, size_t ldc,
                                                       const __mmask16 columns[VECTORS], int accumulate, int bf16) {
    __m512 sums[ROWS][VECTORS];
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; v++) {
            sums[r][v] = accumulate ? _mm512_maskz_loadu_ps(columns[v], c + r * ldc + v * WIDTH) : _mm512_setzero_ps();
            __builtin_prefetch(c + (r + ROWS) * ldc + v * WIDTH, 1);
        }
    for (size_t i = 0; i < k; i++, a += ROWS, b += STRIP) {
        __m512i bs[VECTORS];
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; v++) bs[v] = _mm512_loadu_si512(b + v * WIDTH);
#pragma GCC unroll 6
        for (int r = 0; r < rows; r++) {
            const __m512i x = _mm512_set1_epi32(a[r]);
#pragma GCC unroll 4
            for (int v = 0; v < VECTORS; v++)
                sums[r][v] = bf16 ? _mm512_dpbf16_ps(sums[r][v], (__m512bh)x, (__m512bh)bs[v])
                                  : _mm512_fmadd_ps((__m512)x, (__m512)bs[v], sums[r][v]);
        }
    }
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; v++) _mm512_mask_storeu_ps(c + r * ldc + v * WIDTH, columns[v], sums[r][v]);
}

// strip computes rows [from, to) of a strip of C that begins at a column, from the packed panels a of A and b, where B is packed to.
static inline __attribute__((always_inline)) void strip(const struct gradient *g, size_t from, size_t to, size_t column, const int32_t *a,
                                                        int32_t *b, int bf16) {
    const size_t rows = packed_rows(g->k, bf16), columns = g->n - column < STRIP ? g->n - column : STRIP;
    __mmask16 masks[VECTORS];
    for (size_t v = 0; v < VECTORS; v++) masks[v] = v * WIDTH < columns ? first(columns - v * WIDTH) : 0;
    pack(b, g->b, g->k, g->n, column, columns, STRIP, bf16);
    for (size_t m = from; m < to; m += ROWS, a += ROWS * rows) {
        float *c = g->c + m * g->n + column;
        switch (to - m) {
#define TILE(rows_) tile(rows_, rows, a, b, c, g->n, masks, g->accumulate, bf16)
            case 1: TILE(1); break;
            case 2: TILE(2); break;
            case 3: TILE(3); break;
            case 4: TILE(4); break;
            case 5: TILE(5); break;
            default: TILE(ROWS);
#undef TILE
        }
    }
}

// block is how many rows of C share the packed panels of A, which are to stay in the second-level cache.
static size_t block(size_t rows) {
    const size_t cached = (size_t)384 << 10;
    const size_t panels = cached / (ROWS * rows * sizeof(int32_t));
    return ROWS * (panels ? panels : 1);
}

size_t avg_gradient_scratch(const struct avg_device *d, struct gradient g) {
    const size_t rows = packed_rows(g.k, g.bf16);
    return (block(rows) + (size_t)d->threads * STRIP) * rows * sizeof(int32_t);
}

void avg_gradient(struct avg_device *d, struct gradient g, void *scratch) {
    const size_t rows = packed_rows(g.k, g.bf16), height = block(rows), strips = (g.n + STRIP - 1) / STRIP;
    int32_t *packed = scratch, *own = packed + height * rows;
    for (size_t from = 0; from < g.m; from += height) {
        const size_t to = g.m - from < height ? g.m : from + height;
#pragma omp parallel num_threads(d->threads)
        {
#pragma omp for schedule(static)
            for (size_t m = from; m < to; m += ROWS)
                pack(packed + (m - from) * rows, g.a, g.k, g.m, m, to - m < ROWS ? to - m : ROWS, ROWS, g.bf16);
#pragma omp for schedule(static)
            for (size_t s = 0; s < strips; s++) {
                int32_t *b = own + (size_t)omp_get_thread_num() * STRIP * rows;
                if (g.bf16)
                    strip(&g, from, to, s * STRIP, packed, b, 1);
                else
                    strip(&g, from, to, s * STRIP, packed, b, 0);
            }
        }
    }
}
