// The functions of NCCL that copies between two processors need, found when the library is loaded.
#ifndef AVG_NCCL_H
#define AVG_NCCL_H

#include <stddef.h>
#include <stdint.h>

struct avg_nccl {
	int (*version)(int *version);
	const char *(*error)(int result);
	int (*create)(void **communicators, int processors, const int *ordinals);
	int (*destroy)(void *communicator);
	int (*abort)(void *communicator);
	int (*state)(void *communicator, int *result);
	int (*begin)(void);
	int (*end)(void);
	int (*send)(const void *from, size_t count, int type, int to_rank, void *communicator, void *stream);
	int (*receive)(void *to, size_t count, int type, int from_rank, void *communicator, void *stream);
};

// avg_nccl_find finds the functions in a library that is open. It returns NULL, or the name of one that it lacks.
const char *avg_nccl_find(struct avg_nccl *nccl, void *library);

int avg_nccl_version(const struct avg_nccl *nccl, int *version);
const char *avg_nccl_error(const struct avg_nccl *nccl, int result);

// avg_nccl_create makes the communicators of two processors of this process, ranks 0 and 1.
int avg_nccl_create(const struct avg_nccl *nccl, void *communicators[2], const int ordinals[2]);
int avg_nccl_destroy(const struct avg_nccl *nccl, void *communicator);
int avg_nccl_abort(const struct avg_nccl *nccl, void *communicator);

// avg_nccl_state is the first error of what a communicator was given, in *result.
int avg_nccl_state(const struct avg_nccl *nccl, void *communicator, int *result);

// avg_nccl_copy hands a copy from rank 0 to rank 1 to their streams.
int avg_nccl_copy(const struct avg_nccl *nccl, void *communicators[2], uintptr_t dst, uintptr_t src, size_t bytes, void *streams[2]);

#endif
