// What the kernels of attention are told; see device.AttentionShape.
#pragma once
#include "common.cuh"

// Row j of head g of sample b of the keys, and of the values, begins at element b key_sample + g key_head + j key_row; queries are those from
// position `past` on.
#define SHAPE                                                                                                                                  \
	long heads, long key_heads, long queries, long keys, long past, long s, long query_row, long key_sample, long key_head, long key_row,         \
		int bidirectional, long window, const int *mask, unsigned long long key, unsigned long long first, const long *now,                          \
		unsigned threshold, float keep
#define SHAPE_OF_KERNEL                                                                                                                        \
	{                                                                                                                                             \
		heads, key_heads, queries, keys, past, s, query_row, key_sample, key_head, key_row, bidirectional, window, mask, now ? now[0] : key, \
			now ? now[1] : first, threshold, keep                                                                                                     \
	}

struct Attended {
	long heads, key_heads, queries, keys, past, s, query_row, key_sample, key_head, key_row;
	int bidirectional;
	long window;
	const int *mask;
	unsigned long long key, first;
	unsigned threshold;
	float keep;

	__device__ float scale() const { return 1 / sqrtf((float)s); }
	// sees reports whether query i of sample b sees key j.
	__device__ bool sees(long b, long i, long j) const {
		long at = past + i;
		if (i >= queries || j >= keys || (!bidirectional && j > at) || (window > 0 && j <= at - window)) return false;
		return !mask || mask[b * keys + j] != 0;
	}
	// all_see reports whether each of so many queries from `top` on sees each of so many keys from `left` on.
	__device__ bool all_see(long top, long rows, long left, long columns) const {
		long at = past + top, last = left + columns - 1;
		return !mask && top + rows <= queries && last < keys && (bidirectional || last <= at) && (window == 0 || left > at + rows - 1 - window);
	}
	// The first key that queries from i on see, and the end of those that queries before i see.
	__device__ long from(long i) const { return window > 0 && past + i + 1 > window ? past + i + 1 - window : 0; }
	__device__ long until(long i) const { return bidirectional || past + i > keys ? keys : past + i; }
	// keeps reports whether dropout keeps the probability of a pair, which it multiplies by `keep`.
	__device__ bool keeps(long b, long h, long i, long j) const { return draw(key, first + ((b * heads + h) * queries + i) * keys + j) >= threshold; }
	__device__ long queries_at(long b, long h, long i) const { return (b * queries + i) * query_row + h * s; }
	__device__ long out_at(long b, long h, long i) const { return ((b * queries + i) * heads + h) * s; }
	__device__ long keys_at(long b, long g, long j) const { return b * key_sample + g * key_head + j * key_row; }
};
