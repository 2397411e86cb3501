// The functions of cuBLAS that products need, found when the library is loaded.
#ifndef AVG_BLAS_H
#define AVG_BLAS_H

#include <stddef.h>
#include <stdint.h>

struct avg_blas {
	int (*create)(void **handle);
	int (*destroy)(void *handle);
	int (*version)(void *handle, int *version);
	int (*stream)(void *handle, void *stream);
	int (*workspace)(void *handle, void *memory, size_t bytes);
	int (*gemm)(void *handle, int trans_a, int trans_b, int m, int n, int k, const void *alpha, const void *a, int type_a, int lda,
	            const void *b, int type_b, int ldb, const void *beta, void *c, int type_c, int ldc, int compute, int algorithm);
};

// struct avg_product is C = beta C + op(A) op(B) by columns, as BLAS has it, at addresses of the device.
struct avg_product {
	int trans_a, trans_b, m, n, k, lda, ldb, ldc, type_a, type_b, type_c, compute;
	float beta;
	uintptr_t a, b, c;
};

// avg_blas_find finds the functions in a library. It returns NULL, or the name of one that it lacks.
const char *avg_blas_find(struct avg_blas *blas, void *library);

// avg_blas_create makes a handle that multiplies on a stream, with memory of the device to work in.
int avg_blas_create(const struct avg_blas *blas, void **handle, void *stream, uintptr_t memory, size_t bytes, int *version);
int avg_blas_destroy(const struct avg_blas *blas, void *handle);
int avg_blas_product(const struct avg_blas *blas, void *handle, const struct avg_product *p);

#endif
