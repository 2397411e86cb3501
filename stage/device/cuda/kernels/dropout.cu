// Dropout: masks are drawn, never stored.
#include "pack.cuh"

KERNEL dropout(void *y, const void *x, int brain, unsigned long long key, unsigned long long first, const long *now,
               unsigned threshold, float scale, long share, long columns, long n) {
	latest(now, key, first);
	for (EACH_PACK(4, i, n)) {
		Pack<4> in = load<4>(In(x, brain), i, n);
		long row = quotient(i, columns), column = i - row * columns;
		unsigned long long at = first + quotient(row, share) * columns + column;
		unsigned drawn[4];
		if (at % 4 == 0 && column + 4 <= columns) philox(drawn, key, at / 4); // a pack is a block of numbers
		else UNROLL for (int c = 0; c < 4; c++) drawn[c] = draw(key, first + quotient(quotient(i + c, columns), share) * columns + (i + c) % columns);
		UNROLL for (int c = 0; c < 4; c++) in.x[c] = drawn[c] < threshold ? 0 : in.x[c] * scale;
		store(Out(y, brain), in, i, n);
	}
}

KERNEL drop_rows(float *y, const float *x, const int *ids, unsigned long long key, const long *now, unsigned threshold, float scale,
                 long columns, long n, Fault *fault, int operation) {
	latest(now, key);
	for (EACH(i, n)) {
		long row = quotient(i, columns);
		if (!accepted(fault, operation, row, ids[row], 0, 0x7fffffff)) continue;
		y[i] = (draw(key, ids[row]) < threshold ? 0 : scale) * x[i];
	}
}
