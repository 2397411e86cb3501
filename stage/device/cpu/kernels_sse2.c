//go:build onednn && cgo && linux && amd64

#include <immintrin.h>

#define WIDTH 4       // floats in a vector
#define LANE_NUMBERS {0, 1, 2, 3}
#define TILE_VECTORS 2  // of a register tile: 6 rows by 2 vectors and what feeds them fit 16 registers
#define TABLE avg_kernels_sse2
#define TABLE_NAME "sse2"
#define VECTOR_FMA(a, b, c) ((a) * (b) + (c))
#define VECTOR_MAX(a, b) ((vec)_mm_max_ps((__m128)(a), (__m128)(b)))
#define VECTOR_MIN(a, b) ((vec)_mm_min_ps((__m128)(a), (__m128)(b)))
#define VECTOR_SQRT(x) ((vec)_mm_sqrt_ps((__m128)(x)))

#include "kernels_body.h"
