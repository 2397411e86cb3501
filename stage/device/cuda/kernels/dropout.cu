// Dropout: masks are drawn, never stored.
#include "common.cuh"

KERNEL dropout(void *y, const void *x, int brain, unsigned long long key, unsigned long long first, const long *now,
               unsigned threshold, float scale, long share, long columns, long n) {
	latest(now, key, first);
	Out out(y, brain);
	In in(x, brain);
	for (EACH(i, n)) {
		unsigned long long at = first + i / columns / share * columns + i % columns;
		out.set(i, draw(key, at) < threshold ? 0 : in[i] * scale);
	}
}

KERNEL drop_rows(float *y, const float *x, const int *ids, unsigned long long key, const long *now, unsigned threshold, float scale,
                 long columns, long n, Fault *fault, int operation) {
	latest(now, key);
	for (EACH(i, n)) {
		long row = i / columns;
		if (!accepted(fault, operation, row, ids[row], 0, 0x7fffffff)) continue;
		y[i] = (draw(key, ids[row]) < threshold ? 0 : scale) * x[i];
	}
}
