//go:build cuda && cgo && linux && amd64

#include "lt.h"

#include <dlfcn.h>
#include <string.h>

// Numbers of cublasLt.
enum { type_f32 = 0, transpose_a = 3, transpose_b = 4, epilogue = 7, bias_pointer = 8, add_bias = 4, most_workspace = 1, least_alignment_of_a = 5 };

const char *avg_lt_find(struct avg_lt *lt, void *library) {
	const struct {
		const char *name;
		void *to;
	} functions[] = {
		{"cublasLtCreate", &lt->create},
		{"cublasLtDestroy", &lt->destroy},
		{"cublasLtMatmulDescCreate", &lt->operation},
		{"cublasLtMatmulDescDestroy", &lt->destroy_operation},
		{"cublasLtMatmulDescSetAttribute", &lt->set_operation},
		{"cublasLtMatrixLayoutCreate", &lt->layout},
		{"cublasLtMatrixLayoutDestroy", &lt->destroy_layout},
		{"cublasLtMatmulPreferenceCreate", &lt->preference},
		{"cublasLtMatmulPreferenceDestroy", &lt->destroy_preference},
		{"cublasLtMatmulPreferenceSetAttribute", &lt->set_preference},
		{"cublasLtMatmulAlgoGetHeuristic", &lt->choose},
		{"cublasLtMatmul", &lt->multiply},
	};
	for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
		void *found = dlsym(library, functions[i].name);
		if (found == NULL) return functions[i].name;
		*(void **)functions[i].to = found;
	}
	return NULL;
}

int avg_lt_create(const struct avg_lt *lt, void **handle) { return lt->create(handle); }
int avg_lt_destroy(const struct avg_lt *lt, void *handle) { return lt->destroy(handle); }

// describe makes the parts of a plan. The library takes the alignment of a bias from its address: this one has no more than it should.
static int describe(const struct avg_lt *lt, const struct avg_product *p, uint32_t alignment, struct avg_lt_plan *plan) {
	const uintptr_t bias = alignment;
	const int32_t trans_a = p->trans_a, trans_b = p->trans_b;
	const uint32_t after = add_bias;
	int status = lt->operation(&plan->operation, p->compute, type_f32);
	if (status == 0) status = lt->set_operation(plan->operation, transpose_a, &trans_a, sizeof trans_a);
	if (status == 0) status = lt->set_operation(plan->operation, transpose_b, &trans_b, sizeof trans_b);
	if (status == 0) status = lt->set_operation(plan->operation, epilogue, &after, sizeof after);
	if (status == 0) status = lt->set_operation(plan->operation, bias_pointer, &bias, sizeof bias);
	if (status == 0) status = lt->layout(&plan->a, p->type_a, trans_a ? p->k : p->m, trans_a ? p->m : p->k, p->lda);
	if (status == 0) status = lt->layout(&plan->b, p->type_b, trans_b ? p->n : p->k, trans_b ? p->k : p->n, p->ldb);
	if (status == 0) status = lt->layout(&plan->c, p->type_c, p->m, p->n, p->ldc);
	return status;
}

int avg_lt_choose(const struct avg_lt *lt, void *handle, const struct avg_product *p, uint32_t alignment, size_t workspace, struct avg_lt_plan *plan) {
	void *preference = NULL;
	int found = 0, status;
	memset(plan, 0, sizeof *plan);
	status = describe(lt, p, alignment, plan);
	if (status == 0) status = lt->preference(&preference);
	if (status == 0) status = lt->set_preference(preference, most_workspace, &workspace, sizeof workspace);
	for (int operand = 0; operand < 4 && status == 0; operand++) {
		status = lt->set_preference(preference, least_alignment_of_a + operand, &alignment, sizeof alignment);
	}
	if (status == 0) status = lt->choose(handle, plan->operation, plan->a, plan->b, plan->c, plan->c, preference, 1, &plan->choice, &found);
	if (preference != NULL) lt->destroy_preference(preference);
	if (status != 0 || found == 0 || plan->choice.state != 0) avg_lt_forget(lt, plan);
	return status;
}

void avg_lt_forget(const struct avg_lt *lt, struct avg_lt_plan *plan) {
	if (plan->operation != NULL) lt->destroy_operation(plan->operation);
	if (plan->a != NULL) lt->destroy_layout(plan->a);
	if (plan->b != NULL) lt->destroy_layout(plan->b);
	if (plan->c != NULL) lt->destroy_layout(plan->c);
	memset(plan, 0, sizeof *plan);
}

int avg_lt_product(const struct avg_lt *lt, void *handle, const struct avg_lt_plan *plan, const struct avg_product *p, uintptr_t bias,
                   uintptr_t workspace, void *stream) {
	const float one = 1, none = 0;
	int status = lt->set_operation(plan->operation, bias_pointer, &bias, sizeof bias);
	if (status != 0) return status;
	return lt->multiply(handle, plan->operation, &one, (void *)p->a, plan->a, (void *)p->b, plan->b, &none, (void *)p->c, plan->c, (void *)p->c, plan->c,
	                    plan->choice.algorithm, (void *)workspace, plan->choice.workspace, stream);
}
