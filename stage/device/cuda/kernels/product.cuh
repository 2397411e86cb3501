// What kernels that multiply share.
#pragma once
#include "pack.cuh"

// Blocks have 256 threads, and so few registers that two are at a multiprocessor at once.
#define TILE_KERNEL KERNEL __launch_bounds__(256, 2)

// finish, which many call, sets elements of row `row` of C, (m,n), from column `column` on.
template <int N> CALLED void finish(Out c, long row, long column, long m, long n, Pack<N> sum, const float *bias, int accumulate) {
	if (row >= m || column >= n) return;
	auto add = [](float v, float w) { return v + w; };
	long at = row * n + column, end = (row + 1) * n;
	if (bias) sum = combine<N>(add, sum, load<N>(bias, column, n));
	if (accumulate) sum = combine<N>(add, load<N>((const float *)c.data, at, end), sum);
	store(c, sum, at, end);
}
