//go:build onednn && cgo && linux && amd64

// The kernels for AVX2 with FMA.

#pragma GCC target("avx2,fma")
#include <immintrin.h>

#define WIDTH 8       // floats in a vector
#define LANE_NUMBERS {0, 1, 2, 3, 4, 5, 6, 7}
#define VECTOR_FMA(a, b, c) ((vec)_mm256_fmadd_ps((__m256)(a), (__m256)(b), (__m256)(c)))
#define VECTOR_MAX(a, b) ((vec)_mm256_max_ps((__m256)(a), (__m256)(b)))
#define VECTOR_MIN(a, b) ((vec)_mm256_min_ps((__m256)(a), (__m256)(b)))
#define VECTOR_SQRT(x) ((vec)_mm256_sqrt_ps((__m256)(x)))
#define VECTOR_MUL32(a, b) ((wvec)_mm256_mul_epu32((__m256i)(a), (__m256i)(b)))  // of the low halves of 64-bit lanes
#define TILE_VECTORS 2  // of a register tile: 6 rows by 2 vectors and what feeds them fit 16 registers
#define TABLE avg_kernels_avx2
#define TABLE_NAME "avx2"

#include "kernels_body.h"
