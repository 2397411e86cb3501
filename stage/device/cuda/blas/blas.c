//go:build cuda && cgo && linux && amd64

#include "blas.h"

#include <dlfcn.h>
#include <stddef.h>

const char *avg_blas_find(struct avg_blas *blas, void *library) {
	const struct {
		const char *name;
		void *to;
	} functions[] = {
		{"cublasCreate_v2", &blas->create},       {"cublasDestroy_v2", &blas->destroy}, {"cublasGetVersion_v2", &blas->version},
		{"cublasSetStream_v2", &blas->stream}, {"cublasSetWorkspace_v2", &blas->workspace}, {"cublasGemmEx", &blas->gemm},
	};
	for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
		void *found = dlsym(library, functions[i].name);
		if (found == NULL) return functions[i].name;
		*(void **)functions[i].to = found;
	}
	return NULL;
}

int avg_blas_create(const struct avg_blas *blas, void **handle, void *stream, uintptr_t memory, size_t bytes, int *version) {
	int status = blas->create(handle);
	if (status == 0) status = blas->stream(*handle, stream);
	if (status == 0) status = blas->workspace(*handle, (void *)memory, bytes); // after the stream, which takes it away
	if (status == 0) status = blas->version(*handle, version);
	if (status != 0 && *handle != NULL) blas->destroy(*handle);
	return status;
}

int avg_blas_destroy(const struct avg_blas *blas, void *handle) { return blas->destroy(handle); }

int avg_blas_product(const struct avg_blas *blas, void *handle, const struct avg_product *p) {
	const float alpha = 1;
	const int chosen_by_library = -1;
	return blas->gemm(handle, p->trans_a, p->trans_b, p->m, p->n, p->k, &alpha, (void *)p->a, p->type_a, p->lda, (void *)p->b, p->type_b,
	                  p->ldb, &p->beta, (void *)p->c, p->type_c, p->ldc, p->compute, chosen_by_library);
}
