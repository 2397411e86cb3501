//go:build onednn && cgo && linux && amd64

// The kernels for AVX-512.

#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma")
#include <immintrin.h>

#define WIDTH 16      // floats in a vector
#define LANE_NUMBERS {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}
#define VECTOR_FMA(a, b, c) ((vec)_mm512_fmadd_ps((__m512)(a), (__m512)(b), (__m512)(c)))
#define VECTOR_MAX(a, b) ((vec)_mm512_max_ps((__m512)(a), (__m512)(b)))
#define VECTOR_MIN(a, b) ((vec)_mm512_min_ps((__m512)(a), (__m512)(b)))
#define VECTOR_SQRT(x) ((vec)_mm512_sqrt_ps((__m512)(x)))
#define VECTOR_MUL32(a, b) ((wvec)_mm512_mul_epu32((__m512i)(a), (__m512i)(b)))  // of the low halves of 64-bit lanes
#define HAS_PAIRS 1   // instructions for pairs of bf16; compilers use them for what is called for pairs only
#define TILE_VECTORS 4  // of a register tile: 6 rows by 4 vectors and what feeds them fit 32 registers
#define TABLE avg_kernels_avx512
#define TABLE_NAME "avx512"

#include "kernels_body.h"
