//go:build onednn && cgo && linux && amd64

// The kernels for SSE2, which every amd64 processor has.

#include <immintrin.h>

#define WIDTH 4       // floats in a vector
#define LANE_NUMBERS {0, 1, 2, 3}
#define VECTOR_FMA(a, b, c) ((a) * (b) + (c))
#define VECTOR_MAX(a, b) ((vec)_mm_max_ps((__m128)(a), (__m128)(b)))
#define VECTOR_MIN(a, b) ((vec)_mm_min_ps((__m128)(a), (__m128)(b)))
#define VECTOR_SQRT(x) ((vec)_mm_sqrt_ps((__m128)(x)))
#define VECTOR_MUL32(a, b) ((wvec)_mm_mul_epu32((__m128i)(a), (__m128i)(b)))  // of the low halves of 64-bit lanes
#define TILE_VECTORS 2  // of a register tile: 6 rows by 2 vectors and what feeds them fit 16 registers
#define TABLE avg_kernels_sse2
#define TABLE_NAME "sse2"

#include "kernels_body.h"
