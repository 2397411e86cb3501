// UCX as links need it: a worker with one endpoint, used by several threads one at a time. The library is opened while the program runs.
#ifndef AVG_UCX_H
#define AVG_UCX_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <ucp/api/ucp.h>

struct avg_path;

// avg_op is something that is handed to UCX. Until it is done, UCX may use its memory.
struct avg_op {
	int32_t busy; // from when it is handed over until it is done
	int32_t status;
	int32_t receives;
	uint64_t length; // of what was received
	void *request;
	struct avg_path *path;
};

enum { AVG_OPS = 32 };

// avg_path is one worker and its endpoint. All is guarded by the mutex but ops[].busy, which is atomic.
struct avg_path {
	pthread_mutex_t mutex;
	ucp_worker_h worker;
	ucp_ep_h endpoint;
	int events; // the descriptor
	int stopped, failed;
	uint64_t ended, told; // operations, and of how many avg_path_progress has told
	struct avg_op ops[AVG_OPS];
};

// avg_ucx_load opens the library and finds its functions: NULL, or what is wrong.
const char *avg_ucx_load(void);
void avg_ucx_version(unsigned *major, unsigned *minor);
const char *avg_ucx_error(int status);

// avg_ucx_init makes a context on network devices, commas between them.
int avg_ucx_init(const char *devices, ucp_context_h *context);
void avg_ucx_cleanup(ucp_context_h context);

// avg_ucx_map has devices know memory, which then is not moved and not freed before avg_ucx_unmap.
int avg_ucx_map(ucp_context_h context, void *memory, size_t bytes, ucp_mem_h *handle);
void avg_ucx_unmap(ucp_context_h context, ucp_mem_h handle);

// avg_path_open makes a path with an address of its own, and avg_path_connect connects it to the address of another.
int avg_path_open(ucp_context_h context, struct avg_path **path);
int avg_path_address(struct avg_path *path, void **address, size_t *bytes);
void avg_path_release_address(struct avg_path *path, void *address);
int avg_path_connect(struct avg_path *path, const void *address);

// avg_path_send and avg_path_receive hand over one message, by an operation that is not busy. A send that is matched ends when the other end has asked
// for it, any other when its memory may be used again. memory is of handle, unless that is NULL.
void avg_path_send(struct avg_path *path, int op, void *memory, size_t bytes, uint64_t tag, int matched, ucp_mem_h handle);
void avg_path_receive(struct avg_path *path, int op, void *memory, size_t bytes, uint64_t tag, ucp_mem_h handle);

enum { AVG_ENDED, AVG_STOPPED, AVG_ARMED };

// avg_path_progress moves messages until an operation has ended (AVG_ENDED), avg_path_stop was called (AVG_STOPPED), the other end is gone (a negative
// status), or nothing moves (AVG_ARMED): then it is to be called again when the descriptor can be read.
int avg_path_progress(struct avg_path *path);
void avg_path_stop(struct avg_path *path);

// avg_path_close ends what was handed over, within a bound, and frees the path. It returns 0, or -1 where something has not ended: then the path
// stays, and so must all memory of its operations.
int avg_path_close(struct avg_path *path);

#endif
