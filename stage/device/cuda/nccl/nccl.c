//go:build cuda && cgo && linux && amd64

#include "nccl.h"

#include <dlfcn.h>

const char *avg_nccl_find(struct avg_nccl *nccl, void *library) {
	const struct {
		const char *name;
		void *to;
	} functions[] = {
		{"ncclGetVersion", &nccl->version},       {"ncclGetErrorString", &nccl->error}, {"ncclCommInitAll", &nccl->create},
		{"ncclCommDestroy", &nccl->destroy},      {"ncclCommAbort", &nccl->abort},      {"ncclCommGetAsyncError", &nccl->state},
		{"ncclGroupStart", &nccl->begin},         {"ncclGroupEnd", &nccl->end},         {"ncclSend", &nccl->send},
		{"ncclRecv", &nccl->receive},
	};
	for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
		void *found = dlsym(library, functions[i].name);
		if (found == NULL) return functions[i].name;
		*(void **)functions[i].to = found;
	}
	return NULL;
}

int avg_nccl_version(const struct avg_nccl *nccl, int *version) { return nccl->version(version); }

const char *avg_nccl_error(const struct avg_nccl *nccl, int result) { return nccl->error(result); }

int avg_nccl_create(const struct avg_nccl *nccl, void *communicators[2], const int ordinals[2]) { return nccl->create(communicators, 2, ordinals); }

int avg_nccl_destroy(const struct avg_nccl *nccl, void *communicator) { return nccl->destroy(communicator); }

int avg_nccl_abort(const struct avg_nccl *nccl, void *communicator) { return nccl->abort(communicator); }

int avg_nccl_state(const struct avg_nccl *nccl, void *communicator, int *result) { return nccl->state(communicator, result); }

int avg_nccl_copy(const struct avg_nccl *nccl, void *communicators[2], uintptr_t dst, uintptr_t src, size_t bytes, void *streams[2]) {
	const int one_byte = 1; // the number of ncclUint8
	int result = nccl->begin();
	if (result != 0) return result;
	int sent = nccl->send((void *)src, bytes, one_byte, 1, communicators[0], streams[0]);
	int received = nccl->receive((void *)dst, bytes, one_byte, 0, communicators[1], streams[1]);
	result = nccl->end();
	return sent != 0 ? sent : received != 0 ? received : result;
}
