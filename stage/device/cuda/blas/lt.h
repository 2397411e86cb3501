// The functions of cublasLt that products with a bias need, found when the library is loaded.
#ifndef AVG_LT_H
#define AVG_LT_H

#include <stddef.h>
#include <stdint.h>

#include "blas.h"

// struct avg_lt_choice is what the library's heuristics answer: how to multiply, and what that takes.
struct avg_lt_choice {
	uint64_t algorithm[8];
	size_t workspace;
	int state;
	float waves;
	int reserved[4];
};

struct avg_lt {
	int (*create)(void **handle);
	int (*destroy)(void *handle);
	int (*operation)(void **operation, int compute, int scale_type);
	int (*destroy_operation)(void *operation);
	int (*set_operation)(void *operation, int attribute, const void *value, size_t bytes);
	int (*layout)(void **layout, int type, uint64_t rows, uint64_t columns, int64_t columns_apart);
	int (*destroy_layout)(void *layout);
	int (*preference)(void **preference);
	int (*destroy_preference)(void *preference);
	int (*set_preference)(void *preference, int attribute, const void *value, size_t bytes);
	int (*choose)(void *handle, void *operation, void *a, void *b, void *c, void *d, void *preference, int most, struct avg_lt_choice *choices,
	              int *found);
	int (*multiply)(void *handle, void *operation, const void *alpha, const void *a, void *layout_a, const void *b, void *layout_b, const void *beta,
	                const void *c, void *layout_c, void *d, void *layout_d, const void *algorithm, void *workspace, size_t bytes, void *stream);
};

// struct avg_lt_plan is how products of a shape are multiplied, with a bias for each row of C, by columns.
struct avg_lt_plan {
	void *operation, *a, *b, *c;
	struct avg_lt_choice choice;
};

// avg_lt_find finds the functions in a library. It returns NULL, or the name of one that is not there.
const char *avg_lt_find(struct avg_lt *lt, void *library);

int avg_lt_create(const struct avg_lt *lt, void **handle);
int avg_lt_destroy(const struct avg_lt *lt, void *handle);

// avg_lt_choose asks the library for a plan of products like p, whose operands and bias lie at multiples of so many bytes. Where it has none the
// plan's operation is NULL, or the status says more.
int avg_lt_choose(const struct avg_lt *lt, void *handle, const struct avg_product *p, uint32_t alignment, size_t workspace, struct avg_lt_plan *plan);
void avg_lt_forget(const struct avg_lt *lt, struct avg_lt_plan *plan);
int avg_lt_product(const struct avg_lt *lt, void *handle, const struct avg_lt_plan *plan, const struct avg_product *p, uintptr_t bias,
                   uintptr_t workspace, void *stream);

#endif
