// What vector.h is built on: SSE2, which every amd64 processor has. No include guard: one instruction set to a source file.

#include <immintrin.h>

#define WIDTH 4       // floats in a vector
#define LANE_NUMBERS {0, 1, 2, 3}
#define VECTOR_FMA(a, b, c) ((a) * (b) + (c))
#define VECTOR_MAX(a, b) ((vec)_mm_max_ps((__m128)(a), (__m128)(b)))
#define VECTOR_MIN(a, b) ((vec)_mm_min_ps((__m128)(a), (__m128)(b)))
#define VECTOR_SQRT(x) ((vec)_mm_sqrt_ps((__m128)(x)))
#define VECTOR_MUL32(a, b) ((wvec)_mm_mul_epu32((__m128i)(a), (__m128i)(b)))  // of the low halves of 64-bit lanes
