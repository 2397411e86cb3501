// A driver of CUDA without a device, for tests. Device memory is memory of the host, poisoned with 0xff. What is handed to a stream runs as late
// as it may: when somebody waits for it, in the thread that waits. Tests count launches and cause failures through the functions fake_*.
#include <elf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <string>

#include "driver.h"
#include "fibers.h"
#include "kernels.h"

struct CUctx_st {
	CUresult failure; // once something has failed, everything does, until the last user releases the context
	int users;
	size_t held;              // bytes of the device's memory
	std::set<CUcontext> peers; // whose memory its device may use
};

typedef std::function<CUresult()> Task;

struct CUgraph_st {
	std::vector<Task> tasks;
	bool invalid;
};

struct CUgraphExec_st {
	std::vector<Task> tasks;
};

struct CUstream_st {
	CUcontext context;
	std::deque<Task> tasks;
	uint64_t handed, done;
	CUgraph captured; // takes what is handed over in place of the stream
};

struct CUevent_st {
	CUstream stream;
	uint64_t after; // tasks of the stream
};

struct CUmod_st {
	std::string entries; // as PTX has them
};

struct CUfunc_st {
	const Kernel *kernel;
	size_t most_shared; // bytes of dynamic shared memory that a launch may ask for
};

namespace {

std::recursive_mutex lock;
CUctx_st contexts[16]; // of the devices, by their numbers
thread_local CUcontext current;

// Block is memory of a device.
struct Block {
	size_t bytes;
	CUcontext owner;
};
std::map<CUdeviceptr, Block> memory;     // by address
std::map<uintptr_t, size_t> page_locked; // of the host
std::vector<CUstream> streams;
size_t total = 1 << 30; // of each device
std::map<std::string, long> calls; // by name
std::string trapped;               // the kernel that fails
CUresult trap, lost;
int version, major_capability = 8;
bool refuses_binaries;
std::map<std::string, int> failing; // functions that fail, and how
bool apart;                         // devices cannot reach each other's memory
thread_local CUstream capturing; // what this thread captures

typedef std::lock_guard<std::recursive_mutex> Guard;

// Call is a call of the driver.
struct Call {
	Guard guard;
	Call(const char *name) : guard(lock) { calls[name]++; }
};

CUresult state() {
	if (current == nullptr || current->users == 0) return CUDA_ERROR_INVALID_CONTEXT;
	return lost != CUDA_SUCCESS ? lost : current->failure;
}

// outside is the state, of a call that ends the capture of its thread.
CUresult outside() {
	if (capturing == nullptr) return state();
	capturing->captured->invalid = true;
	return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

// fail keeps the first failure of a context.
CUresult fail(CUcontext context, CUresult code) {
	if (context->failure == CUDA_SUCCESS) context->failure = code;
	return context->failure;
}

// lose fails once where the file exists that FAKE_CUDA_LOSE names, and removes it: so tests lose the device of another process.
void lose(CUcontext context) {
	static const char *path = getenv("FAKE_CUDA_LOSE");
	if (path != nullptr && unlink(path) == 0) fail(context, CUDA_ERROR_LAUNCH_FAILED);
}

// run executes so many of the stream's tasks.
CUresult run(CUstream stream, uint64_t until) {
	CUcontext context = stream->context;
	lose(context);
	while (stream->done < until && lost == CUDA_SUCCESS && context->failure == CUDA_SUCCESS) {
		CUresult code = stream->tasks.front()();
		stream->tasks.pop_front();
		stream->done++;
		if (code != CUDA_SUCCESS) fail(context, code);
	}
	return lost != CUDA_SUCCESS ? lost : context->failure;
}

CUresult hand(CUstream stream, Task task) {
	if (state() != CUDA_SUCCESS) return state();
	if (stream == nullptr || stream->context != current) return CUDA_ERROR_INVALID_HANDLE; // the device has streams of its own
	if (stream->captured != nullptr) {
		stream->captured->tasks.push_back(task);
		return CUDA_SUCCESS;
	}
	stream->tasks.push_back(task);
	stream->handed++;
	return CUDA_SUCCESS;
}

// is_locked reports whether bytes from `at` on lie in one allocation of page-locked memory.
bool is_locked(uintptr_t at, size_t bytes) {
	auto next = page_locked.upper_bound(at);
	if (next == page_locked.begin()) return false;
	--next;
	return at - next->first + bytes <= next->second;
}

// block is the memory of a device that an address lies in; nullptr: it is none.
const std::pair<const CUdeviceptr, Block> *block(CUdeviceptr at) {
	auto next = memory.upper_bound(at);
	if (next == memory.begin()) return nullptr;
	--next;
	return at - next->first < next->second.bytes ? &*next : nullptr;
}

// lies reports whether bytes from `at` on lie in one allocation of a context.
bool lies(CUcontext owner, CUdeviceptr at, size_t bytes) {
	auto found = block(at);
	return found != nullptr && found->second.owner == owner && at - found->first + bytes <= found->second.bytes;
}

bool on_device(CUdeviceptr at, size_t bytes) { return lies(current, at, bytes); }

// foreign reports whether an argument of a kernel is an address that the kernel's device cannot reach.
bool foreign(uint64_t slot) {
	auto found = block(slot);
	return found != nullptr && found->second.owner != current && current->peers.count(found->second.owner) == 0;
}

// refused is how a test has a function fail.
CUresult refused(const char *name) {
	auto found = failing.find(name);
	return found == failing.end() ? CUDA_SUCCESS : (CUresult)found->second;
}

// copy hands a copy to the stream. From and to memory of the host that is not page-locked it waits for its end, as drivers do.
CUresult copy(void *dst, const void *src, size_t bytes, CUstream stream, const void *host) {
	CUresult code = hand(stream, [=] {
		memmove(dst, src, bytes);
		return CUDA_SUCCESS;
	});
	if (code != CUDA_SUCCESS || host == nullptr || is_locked((uintptr_t)host, bytes)) return code;
	return outside() == CUDA_SUCCESS ? run(stream, stream->handed) : outside();
}

CUresult launch(const Kernel *kernel, Index grid, Index block, size_t shared, const std::vector<uint64_t> &slots) {
	if (trapped == kernel->name) return trap;
	std::string stuck = run_grid(grid, block, shared, [&] { kernel->run(slots.data()); });
	if (stuck.empty()) return CUDA_SUCCESS;
	fprintf(stderr, "kernel %s: %s\n", kernel->name, stuck.c_str());
	return CUDA_ERROR_LAUNCH_TIMEOUT;
}

} // namespace

CUresult hand_over(const char *name, CUstream stream, std::function<CUresult()> task) {
	Call call(name);
	return hand(stream, task);
}

bool lies_on_device(const void *at, size_t bytes) {
	Guard guard(lock);
	return on_device((CUdeviceptr)at, bytes);
}

// On a device.

On::On(int device) : before(current) { current = &contexts[device]; }

On::~On() { current = before; }

int refusal(const char *name) {
	Call call(name);
	return refused(name);
}

std::function<CUresult()> end_of(CUstream stream) {
	Guard guard(lock);
	return [=, until = stream->handed] { return run(stream, until); };
}

// For tests.

EXPORT void fake_reset(size_t bytes) {
	Guard guard(lock);
	for (CUctx_st &context : contexts) context.failure = CUDA_SUCCESS;
	lost = CUDA_SUCCESS;
	failing.clear();
	apart = false;
	total = bytes;
	calls.clear();
	trapped = "";
	version = 11080;
	major_capability = 8;
	refuses_binaries = false;
}

EXPORT void fake_trap(const char *kernel, int code) {
	Guard guard(lock);
	trapped = kernel;
	trap = (CUresult)code;
}

EXPORT void fake_fail(const char *function, int code) {
	Guard guard(lock);
	if (code == 0) failing.erase(function);
	else failing[function] = code;
}

EXPORT void fake_apart() {
	Guard guard(lock);
	apart = true;
}

EXPORT void fake_version(int number) {
	Guard guard(lock);
	version = number;
}

EXPORT void fake_capability(int major) {
	Guard guard(lock);
	major_capability = major;
}

EXPORT void fake_refuse_binaries(int whether) {
	Guard guard(lock);
	refuses_binaries = whether;
}

EXPORT void fake_lose(int code) {
	Guard guard(lock);
	lost = (CUresult)code;
}

EXPORT long fake_calls(const char *function) {
	Guard guard(lock);
	return calls[function];
}

EXPORT size_t fake_held() {
	Guard guard(lock);
	size_t held = 0;
	for (const CUctx_st &context : contexts) held += context.held;
	return held;
}

// The driver.

EXPORT CUresult cuInit(unsigned) { return CUDA_SUCCESS; }

EXPORT CUresult cuDriverGetVersion(int *number) {
	*number = version;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuGetErrorName(CUresult code, const char **name) {
	static const std::map<int, const char *> names = {
		{CUDA_ERROR_NO_BINARY_FOR_GPU, "CUDA_ERROR_NO_BINARY_FOR_GPU"},
		{CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY"},
		{CUDA_ERROR_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT"},
		{CUDA_ERROR_ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS"},
		{CUDA_ERROR_LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED"},
		{CUDA_ERROR_LAUNCH_TIMEOUT, "CUDA_ERROR_LAUNCH_TIMEOUT"},
	};
	auto found = names.find(code);
	if (found == names.end()) return CUDA_ERROR_INVALID_VALUE;
	*name = found->second;
	return CUDA_SUCCESS;
}

// The devices are numbered from 0, and all have the same memory. FAKE_CUDA_DEVICES says how many there are, CUDA_VISIBLE_DEVICES which of them are
// shown, by UUIDs, of which the last digits count from 1.
static std::vector<int> visible() {
	const char *said = getenv("FAKE_CUDA_DEVICES"), *shown = getenv("CUDA_VISIBLE_DEVICES");
	std::vector<int> all;
	int count = said == nullptr ? 1 : atoi(said);
	if (shown == nullptr) {
		for (int i = 0; i < count; i++) all.push_back(i);
		return all;
	}
	for (std::string rest = shown; !rest.empty();) {
		std::string one = rest.substr(0, rest.find(','));
		rest.erase(0, one.size() + 1);
		size_t at = one.rfind('-');
		int number = at == std::string::npos ? -1 : atoi(one.c_str() + at + 1) - 1;
		if (number < 0 || number >= count) break; // as drivers do
		all.push_back(number);
	}
	return all;
}

EXPORT CUresult cuDeviceGetCount(int *count) {
	*count = visible().size();
	return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGet(CUdevice *device, int ordinal) {
	std::vector<int> all = visible();
	if (ordinal < 0 || (size_t)ordinal >= all.size()) return CUDA_ERROR_INVALID_DEVICE;
	*device = all[ordinal];
	return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device) {
	memset(uuid, 0, sizeof *uuid);
	((char *)uuid)[sizeof *uuid - 1] = device + 1;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetName(char *name, int bytes, CUdevice) {
	snprintf(name, bytes, "no GPU, fibers");
	return CUDA_SUCCESS;
}

// FAKE_CUDA_OLD is the number of a device of compute capability 7.0.
EXPORT CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device) {
	const char *old = getenv("FAKE_CUDA_OLD");
	int major = old != nullptr && atoi(old) == device ? 7 : major_capability;
	*value = attribute == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR ? major : 0;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice) {
	*bytes = total;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *to, CUdevice device) {
	Call call(__func__);
	if (lost != CUDA_SUCCESS) return lost;
	*to = &contexts[device];
	(*to)->users++;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
	Call call(__func__);
	CUctx_st &context = contexts[device];
	if (context.users == 0) return CUDA_ERROR_INVALID_CONTEXT;
	if (--context.users > 0) return CUDA_SUCCESS;
	context.failure = CUDA_SUCCESS;
	context.peers.clear();
	return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer) {
	Call call(__func__);
	*can = device != peer && !apart;
	return refused(__func__);
}

EXPORT CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned) {
	Call call(__func__);
	if (outside() != CUDA_SUCCESS) return outside();
	if (peer == current || apart) return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
	return current->peers.insert(peer).second ? CUDA_SUCCESS : CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
}

EXPORT CUresult cuCtxSetCurrent(CUcontext to) {
	current = to;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuModuleLoadData(CUmodule *module, const void *image) {
	Call call(__func__);
	if (outside() != CUDA_SUCCESS) return outside();
	std::string entries;
	const Elf64_Ehdr *binary = (const Elf64_Ehdr *)image;
	if (memcmp(image, ELFMAG, SELFMAG) != 0) {
		entries = (const char *)image; // PTX
	} else {
		if (refuses_binaries || (int)(binary->e_flags & 0xff) / 10 != major_capability) return CUDA_ERROR_NO_BINARY_FOR_GPU;
		const Elf64_Shdr *sections = (const Elf64_Shdr *)((const char *)image + binary->e_shoff);
		const char *names = (const char *)image + sections[binary->e_shstrndx].sh_offset;
		for (int i = 0; i < binary->e_shnum; i++) {
			const char *name = names + sections[i].sh_name;
			if (strncmp(name, ".text.", 6) == 0) entries += std::string(".entry ") + (name + 6) + "(";
		}
	}
	*module = new CUmod_st{entries};
	return CUDA_SUCCESS;
}

EXPORT CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned, CUjit_option *, void **) {
	return cuModuleLoadData(module, image);
}

EXPORT CUresult cuModuleUnload(CUmodule module) {
	delete module;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
	if (module->entries.find(std::string(".entry ") + name + "(") == std::string::npos) return CUDA_ERROR_NOT_FOUND;
	for (const Kernel &kernel : kernels()) {
		if (strcmp(kernel.name, name) != 0) continue;
		*function = new CUfunc_st{&kernel, 48 << 10};
		return CUDA_SUCCESS;
	}
	return CUDA_ERROR_NOT_FOUND;
}

// The most shared memory is that of compute capability 8.6, which has least.
EXPORT CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value) {
	if (attribute != CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES || value < 0 || value > 99 << 10) return CUDA_ERROR_INVALID_VALUE;
	function->most_shared = value;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuLaunchKernel(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
                               CUstream stream, void **arguments, void **) {
	Call call(__func__);
	if (gx == 0 || gy == 0 || gz == 0 || gy > 65535 || gz > 65535 || shared > function->most_shared) return CUDA_ERROR_INVALID_VALUE;
	const Kernel *kernel = function->kernel;
	std::vector<uint64_t> slots(kernel->arguments);
	for (size_t i = 0; i < slots.size(); i++) slots[i] = *(uint64_t *)arguments[i];
	bool faults = std::any_of(slots.begin(), slots.end(), foreign);
	return hand(stream, [=] { return faults ? CUDA_ERROR_ILLEGAL_ADDRESS : launch(kernel, {gx, gy, gz}, {bx, by, bz}, shared, slots); });
}

EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *to, size_t bytes) {
	Call call(__func__);
	if (outside() != CUDA_SUCCESS) return outside();
	if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
	if (bytes > total - current->held) return CUDA_ERROR_OUT_OF_MEMORY;
	void *at = aligned_alloc(256, (bytes + 255) / 256 * 256);
	memset(at, 0xff, bytes);
	memory[*to = (CUdeviceptr)at] = {bytes, current};
	current->held += bytes;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuMemFree_v2(CUdeviceptr at) {
	Call call(__func__);
	auto found = memory.find(at);
	if (found == memory.end() || found->second.owner != current) return CUDA_ERROR_INVALID_VALUE;
	if (capturing != nullptr) return outside();
	for (CUstream stream : streams)
		if (stream->context == current) run(stream, stream->handed);
	memset((void *)at, 0xff, found->second.bytes);
	current->held -= found->second.bytes;
	memory.erase(found);
	free((void *)at);
	return state();
}

EXPORT CUresult cuMemGetInfo_v2(size_t *left, size_t *all) {
	*left = current == nullptr ? 0 : total - current->held;
	*all = total;
	return state();
}

EXPORT CUresult cuMemHostAlloc(void **to, size_t bytes, unsigned) {
	Call call(__func__);
	if (outside() != CUDA_SUCCESS) return outside();
	*to = malloc(bytes);
	memset(*to, 0xff, bytes);
	page_locked[(uintptr_t)*to] = bytes;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuMemFreeHost(void *at) {
	Call call(__func__);
	if (page_locked.erase((uintptr_t)at) == 0) return CUDA_ERROR_INVALID_VALUE;
	free(at);
	return CUDA_SUCCESS;
}

EXPORT CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr dst, const void *src, size_t bytes, CUstream stream) {
	Call call(__func__);
	if (!on_device(dst, bytes)) return CUDA_ERROR_INVALID_VALUE;
	return copy((void *)dst, src, bytes, stream, src);
}

EXPORT CUresult cuMemcpyDtoHAsync_v2(void *dst, CUdeviceptr src, size_t bytes, CUstream stream) {
	Call call(__func__);
	if (!on_device(src, bytes)) return CUDA_ERROR_INVALID_VALUE;
	return copy(dst, (void *)src, bytes, stream, dst);
}

EXPORT CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream) {
	Call call(__func__);
	if (!on_device(dst, bytes) || !on_device(src, bytes)) return CUDA_ERROR_INVALID_VALUE;
	return copy((void *)dst, (void *)src, bytes, stream, nullptr);
}

// cuMemcpyPeerAsync goes through the host where the devices cannot reach each other's memory.
EXPORT CUresult cuMemcpyPeerAsync(CUdeviceptr dst, CUcontext to, CUdeviceptr src, CUcontext from, size_t bytes, CUstream stream) {
	Call call(__func__);
	if (!lies(to, dst, bytes) || !lies(from, src, bytes)) return CUDA_ERROR_INVALID_VALUE;
	if (refused(__func__) != CUDA_SUCCESS) return refused(__func__);
	return copy((void *)dst, (void *)src, bytes, stream, nullptr);
}

EXPORT CUresult cuMemsetD8Async(CUdeviceptr at, unsigned char value, size_t bytes, CUstream stream) {
	Call call(__func__);
	if (!on_device(at, bytes)) return CUDA_ERROR_INVALID_VALUE;
	return hand(stream, [=] {
		memset((void *)at, value, bytes);
		return CUDA_SUCCESS;
	});
}

EXPORT CUresult cuStreamCreate(CUstream *stream, unsigned) {
	Call call(__func__);
	if (state() != CUDA_SUCCESS) return state();
	streams.push_back(*stream = new CUstream_st());
	(*stream)->context = current;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamDestroy_v2(CUstream stream) {
	Call call(__func__);
	run(stream, stream->handed);
	streams.erase(std::find(streams.begin(), streams.end(), stream));
	delete stream;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamSynchronize(CUstream stream) {
	Call call(__func__);
	return outside() != CUDA_SUCCESS ? outside() : run(stream, stream->handed);
}

EXPORT CUresult cuStreamQuery(CUstream stream) {
	Call call(__func__);
	if (outside() != CUDA_SUCCESS) return outside();
	return stream == nullptr || stream->done == stream->handed ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

EXPORT CUresult cuEventCreate(CUevent *event, unsigned) {
	if (state() != CUDA_SUCCESS) return state();
	*event = new CUevent_st();
	return CUDA_SUCCESS;
}

EXPORT CUresult cuEventDestroy_v2(CUevent event) {
	delete event;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuEventRecord(CUevent event, CUstream stream) {
	Call call(__func__);
	if (outside() != CUDA_SUCCESS) return outside();
	if (stream->context != current) return CUDA_ERROR_INVALID_HANDLE;
	*event = {stream, stream->handed};
	return CUDA_SUCCESS;
}

EXPORT CUresult cuEventSynchronize(CUevent event) {
	Call call(__func__);
	if (outside() != CUDA_SUCCESS || event->stream == nullptr) return outside();
	return run(event->stream, event->after);
}

EXPORT CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned) {
	Call call(__func__);
	if (outside() != CUDA_SUCCESS || event->stream == nullptr) return outside();
	return hand(stream, [now = *event] { // the event may be recorded anew before this runs, and its stream destroyed
		bool live = std::find(streams.begin(), streams.end(), now.stream) != streams.end();
		return live ? run(now.stream, now.after) : CUDA_SUCCESS;
	});
}

EXPORT CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode) {
	Call call(__func__);
	if (outside() != CUDA_SUCCESS) return outside();
	if (mode != CU_STREAM_CAPTURE_MODE_THREAD_LOCAL) return CUDA_ERROR_INVALID_VALUE; // others hold up what other devices do
	capturing = stream;
	stream->captured = new CUgraph_st();
	return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph) {
	Call call(__func__);
	if (capturing != stream) return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
	*graph = stream->captured;
	capturing = nullptr;
	stream->captured = nullptr;
	if (!(*graph)->invalid) return state();
	delete *graph;
	*graph = nullptr;
	return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
}

EXPORT CUresult cuGraphInstantiateWithFlags(CUgraphExec *executable, CUgraph graph, unsigned long long) {
	Call call(__func__);
	if (outside() != CUDA_SUCCESS) return outside();
	*executable = new CUgraphExec_st{graph->tasks};
	return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphLaunch(CUgraphExec executable, CUstream stream) {
	Call call(__func__);
	return hand(stream, [tasks = executable->tasks] {
		for (const Task &task : tasks) {
			CUresult code = task();
			if (code != CUDA_SUCCESS) return code;
		}
		return CUDA_SUCCESS;
	});
}

EXPORT CUresult cuGraphDestroy(CUgraph graph) {
	Call call(__func__);
	delete graph;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphExecDestroy(CUgraphExec executable) {
	Call call(__func__);
	delete executable;
	return CUDA_SUCCESS;
}
