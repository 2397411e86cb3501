//go:build ucx && cgo && linux

#define _GNU_SOURCE
#include "ucx.h"

#include <dlfcn.h>
#include <poll.h>
#include <stdlib.h>
#include <time.h>

// The functions of the library, by their declarations in its header.
#define FUNCTIONS(X) \
	X(ucp_get_version) X(ucp_config_read) X(ucp_config_modify) X(ucp_config_release) X(ucp_init_version) X(ucp_cleanup) \
	X(ucp_worker_create) X(ucp_worker_destroy) X(ucp_worker_get_address) X(ucp_worker_release_address) X(ucp_worker_get_efd) \
	X(ucp_worker_arm) X(ucp_worker_signal) X(ucp_worker_progress) X(ucp_ep_create) X(ucp_ep_close_nbx) X(ucp_tag_send_nbx) \
	X(ucp_tag_send_sync_nbx) X(ucp_tag_recv_nbx) X(ucp_request_free) X(ucp_request_cancel) X(ucp_request_check_status) \
	X(ucp_mem_map) X(ucp_mem_unmap)

#define POINTER(name) __typeof__(&name) name;
static struct {
	FUNCTIONS(POINTER)
	const char *(*error)(ucs_status_t);
} ucx;

static void *find(void *library, const char *name, const char **lacking) {
	void *found = dlsym(library, name);
	if (found == NULL) *lacking = name;
	return found;
}

const char *avg_ucx_load(void) {
	// What the library reads when it is opened. Its handlers of signals would take those of Go's runtime, which needs SIGSEGV. It cannot see
	// when Go's memory is given back to the kernel, so it must not remember what it has registered: avg_ucx_map does.
	setenv("UCX_HANDLE_ERRORS", "none", 1);
	setenv("UCX_ERROR_SIGNALS", "", 1);
	setenv("UCX_MEM_EVENTS", "n", 1);
	setenv("UCX_TLS", "^shm", 0); // it cannot tell that the other end is gone, so it is not used, and would take memory
	setenv("UCX_LOG_FILE", "stderr", 0);
	setenv("UCX_LOG_LEVEL", "fatal", 0); // what fails says so by its status
	void *library = dlopen("libucp.so.0", RTLD_NOW | RTLD_LOCAL);
	if (library == NULL) return dlerror();
	const char *lacking = NULL;
#define FIND(name) ucx.name = (__typeof__(ucx.name))find(library, #name, &lacking);
	FUNCTIONS(FIND)
	ucx.error = (const char *(*)(ucs_status_t))find(library, "ucs_status_string", &lacking);
	return lacking;
}

void avg_ucx_version(unsigned *major, unsigned *minor) {
	unsigned release;
	ucx.ucp_get_version(major, minor, &release);
}

const char *avg_ucx_error(int status) { return ucx.error((ucs_status_t)status); }

int avg_ucx_init(const char *devices, ucp_context_h *context) {
	ucp_config_t *config;
	ucs_status_t status = ucx.ucp_config_read(NULL, NULL, &config);
	if (status != UCS_OK) return status;
	status = ucx.ucp_config_modify(config, "NET_DEVICES", devices);
	if (status == UCS_OK) {
		const ucp_params_t params = {
			.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_MT_WORKERS_SHARED,
			.features = UCP_FEATURE_TAG | UCP_FEATURE_WAKEUP,
			.mt_workers_shared = 1,
		};
		status = ucx.ucp_init_version(UCP_API_MAJOR, UCP_API_MINOR, &params, config, context);
	}
	ucx.ucp_config_release(config);
	return status;
}

void avg_ucx_cleanup(ucp_context_h context) { ucx.ucp_cleanup(context); }

int avg_ucx_map(ucp_context_h context, void *memory, size_t bytes, ucp_mem_h *handle) {
	const ucp_mem_map_params_t params = {
		.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH,
		.address = memory,
		.length = bytes,
	};
	return ucx.ucp_mem_map(context, &params, handle);
}

void avg_ucx_unmap(ucp_context_h context, ucp_mem_h handle) { ucx.ucp_mem_unmap(context, handle); }

int avg_path_open(ucp_context_h context, struct avg_path **out) {
	struct avg_path *path = calloc(1, sizeof *path);
	if (path == NULL) return UCS_ERR_NO_MEMORY;
	pthread_mutex_init(&path->mutex, NULL);
	for (int i = 0; i < AVG_OPS; i++) path->ops[i].path = path;
	const ucp_worker_params_t params = {
		.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
		.thread_mode = UCS_THREAD_MODE_SERIALIZED,
	};
	ucs_status_t status = ucx.ucp_worker_create(context, &params, &path->worker);
	if (status == UCS_OK) {
		status = ucx.ucp_worker_get_efd(path->worker, &path->events);
		if (status != UCS_OK) ucx.ucp_worker_destroy(path->worker);
	}
	if (status != UCS_OK) {
		free(path);
		return status;
	}
	*out = path;
	return UCS_OK;
}

int avg_path_address(struct avg_path *path, void **address, size_t *bytes) {
	return ucx.ucp_worker_get_address(path->worker, (ucp_address_t **)address, bytes);
}

void avg_path_release_address(struct avg_path *path, void *address) { ucx.ucp_worker_release_address(path->worker, address); }

static void gone(void *arg, ucp_ep_h endpoint, ucs_status_t status) {
	struct avg_path *path = arg;
	(void)endpoint;
	if (path->failed == 0) path->failed = status;
}

int avg_path_connect(struct avg_path *path, const void *address) {
	const ucp_ep_params_t params = {
		.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER,
		.address = address,
		.err_mode = UCP_ERR_HANDLING_MODE_PEER, // else a peer that is gone ends this process
		.err_handler = {.cb = gone, .arg = path},
	};
	pthread_mutex_lock(&path->mutex);
	ucs_status_t status = ucx.ucp_ep_create(path->worker, &params, &path->endpoint);
	pthread_mutex_unlock(&path->mutex);
	return status;
}

static void end(struct avg_op *op, ucs_status_t status) {
	op->status = status;
	op->request = NULL;
	op->path->ended++;
	__atomic_store_n(&op->busy, 0, __ATOMIC_RELEASE);
}

static void sent(void *request, ucs_status_t status, void *op) {
	ucx.ucp_request_free(request);
	end(op, status);
}

static void received(void *request, ucs_status_t status, const ucp_tag_recv_info_t *info, void *arg) {
	struct avg_op *op = arg;
	if (status == UCS_OK) op->length = info->length;
	sent(request, status, op);
}

// handed moves what can be moved at once, and has avg_path_progress do the rest, and tell of what has ended meanwhile. The caller has the mutex.
static void handed(struct avg_path *path, struct avg_op *op, ucs_status_ptr_t request) {
	if (request == NULL) {
		end(op, UCS_OK);
	} else if (UCS_PTR_IS_ERR(request)) {
		end(op, UCS_PTR_STATUS(request));
	} else {
		op->request = request;
		while (op->request != NULL && ucx.ucp_worker_progress(path->worker) != 0) {}
		ucx.ucp_worker_signal(path->worker);
	}
}

void avg_path_send(struct avg_path *path, int i, void *memory, size_t bytes, uint64_t tag, int matched, ucp_mem_h handle) {
	struct avg_op *op = &path->ops[i];
	const ucp_request_param_t params = {
		.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | (handle != NULL ? UCP_OP_ATTR_FIELD_MEMH : 0),
		.cb.send = sent,
		.user_data = op,
		.memh = handle,
	};
	pthread_mutex_lock(&path->mutex);
	op->busy = 1;
	handed(path, op, (matched ? ucx.ucp_tag_send_sync_nbx : ucx.ucp_tag_send_nbx)(path->endpoint, memory, bytes, tag, &params));
	pthread_mutex_unlock(&path->mutex);
}

void avg_path_receive(struct avg_path *path, int i, void *memory, size_t bytes, uint64_t tag, ucp_mem_h handle) {
	struct avg_op *op = &path->ops[i];
	const ucp_request_param_t params = {
		.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FLAG_NO_IMM_CMPL | (handle != NULL ? UCP_OP_ATTR_FIELD_MEMH : 0),
		.cb.recv = received,
		.user_data = op,
		.memh = handle,
	};
	pthread_mutex_lock(&path->mutex);
	op->busy = op->receives = 1;
	handed(path, op, ucx.ucp_tag_recv_nbx(path->worker, memory, bytes, tag, UINT64_MAX, &params));
	pthread_mutex_unlock(&path->mutex);
}

int avg_path_progress(struct avg_path *path) {
	pthread_mutex_lock(&path->mutex);
	int result;
	for (;;) {
		while (path->told == path->ended && ucx.ucp_worker_progress(path->worker) != 0) {}
		result = path->stopped ? AVG_STOPPED : path->failed ? path->failed : path->told != path->ended ? AVG_ENDED : AVG_ARMED;
		if (result != AVG_ARMED || ucx.ucp_worker_arm(path->worker) == UCS_OK) break; // else something has come meanwhile
	}
	path->told = path->ended;
	pthread_mutex_unlock(&path->mutex);
	return result;
}

void avg_path_stop(struct avg_path *path) {
	pthread_mutex_lock(&path->mutex);
	path->stopped = 1;
	ucx.ucp_worker_signal(path->worker);
	pthread_mutex_unlock(&path->mutex);
}

static int64_t milliseconds(void) {
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static int busy(const struct avg_path *path) {
	for (int i = 0; i < AVG_OPS; i++) {
		if (path->ops[i].busy) return 1;
	}
	return 0;
}

int avg_path_close(struct avg_path *path) {
	enum { bound = 1000 }; // milliseconds
	pthread_mutex_lock(&path->mutex);
	for (int i = 0; i < AVG_OPS; i++) {
		if (path->ops[i].receives && path->ops[i].request != NULL) ucx.ucp_request_cancel(path->worker, path->ops[i].request);
	}
	ucs_status_ptr_t closing = NULL;
	if (path->endpoint != NULL) {
		const ucp_request_param_t params = {.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS, .flags = UCP_EP_CLOSE_FLAG_FORCE};
		closing = ucx.ucp_ep_close_nbx(path->endpoint, &params);
	}
	int pending = UCS_PTR_IS_PTR(closing), left = 0;
	for (int64_t end = milliseconds() + bound;; ) {
		while (ucx.ucp_worker_progress(path->worker) != 0) {}
		pending = pending && ucx.ucp_request_check_status(closing) == UCS_INPROGRESS;
		left = pending || busy(path);
		if (!left || milliseconds() > end) break;
		if (ucx.ucp_worker_arm(path->worker) == UCS_OK) {
			struct pollfd descriptor = {.fd = path->events, .events = POLLIN};
			poll(&descriptor, 1, 10);
		}
	}
	if (UCS_PTR_IS_PTR(closing)) ucx.ucp_request_free(closing);
	pthread_mutex_unlock(&path->mutex);
	if (left) return -1;
	ucx.ucp_worker_destroy(path->worker);
	pthread_mutex_destroy(&path->mutex);
	free(path);
	return 0;
}
