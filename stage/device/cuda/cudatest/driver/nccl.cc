// NCCL's sends and receives between two devices of one process, for tests: what is sent lies on the device of its rank, and arrives when the stream
// of the receiver is waited for.
#include <string.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <set>

#include "driver.h"

namespace {

enum Result { success = 0, system_error = 2, invalid_argument = 4, invalid_usage = 5 };

// Communicator is that of a rank of a group of them.
struct Communicator {
	int device, rank, pair;
	bool aborted;
};

std::mutex running_lock;
std::multiset<int> running; // pairs of communicators

// Operation is one on a pair of communicators, which takes its time. One beside that of another pair is an "overlap of NCCL".
struct Operation {
	int pair;
	bool alone, over = false;

	explicit Operation(int pair) : pair(pair) {
		std::lock_guard<std::mutex> guard(running_lock);
		running.insert(pair);
		alone = running.count(pair) == running.size();
		if (!alone) refusal("overlap of NCCL");
	}

	void end() {
		std::lock_guard<std::mutex> guard(running_lock);
		if (!over) running.erase(running.find(pair));
		over = true;
	}

	~Operation() { end(); }
};

// Part is one half of a copy, in a group.
struct Part {
	Communicator *of;
	int other; // rank
	char *at;
	size_t bytes;
	CUstream stream;
	bool sends;
};

thread_local std::vector<Part> parts;
thread_local bool grouped;

const int stall = 1000; // how a test has a function hang: a group until a communicator is aborted, others for as long as the test wants
std::atomic<int> aborts, pairs;

// answer is what a function of a communicator returns, when it does.
int answer(const char *name) {
	int failed;
	do usleep(1000);
	while ((failed = refusal(name)) == stall);
	return failed;
}

int add(const char *name, Part part, int type) {
	if (int failed = refusal(name)) return failed;
	On device(part.of->device);
	if (!grouped || part.of->aborted || type != 1 || part.other == part.of->rank) return invalid_usage;
	if (!lies_on_device(part.at, part.bytes)) return invalid_argument;
	parts.push_back(part);
	return success;
}

// copy hands both halves to their streams.
int copy(const Part &from, const Part &to, std::shared_ptr<Operation> operation) {
	if (from.bytes != to.bytes || from.other != to.of->rank || to.other != from.of->rank) return invalid_usage;
	auto message = std::make_shared<std::vector<char>>();
	{
		On device(from.of->device);
		CUresult code = hand_over("ncclSend: kernel", from.stream, [=] {
			message->assign(from.at, from.at + from.bytes);
			return CUDA_SUCCESS;
		});
		if (code != CUDA_SUCCESS) return system_error;
	}
	auto sent = end_of(from.stream);
	On device(to.of->device);
	CUresult code = hand_over("ncclRecv: kernel", to.stream, [=] {
		CUresult code = sent();
		if (code == CUDA_SUCCESS) memcpy(to.at, message->data(), to.bytes);
		operation->end();
		return code;
	});
	return code == CUDA_SUCCESS ? success : system_error;
}

} // namespace

EXPORT int ncclGetVersion(int *version) {
	*version = 21903;
	return success;
}

EXPORT const char *ncclGetErrorString(int result) { return result == system_error ? "unhandled system error" : "invalid usage"; }

EXPORT int ncclCommInitAll(Communicator **communicators, int count, const int *devices) {
	Operation operation(++pairs);
	if (int failed = answer(__func__)) return failed;
	if (!operation.alone) return invalid_usage;
	for (int i = 0; i < count; i++) communicators[i] = new Communicator{devices[i], i, operation.pair, false};
	return success;
}

EXPORT int ncclCommDestroy(Communicator *communicator) {
	Operation operation(communicator->pair);
	answer(__func__);
	delete communicator;
	return success;
}

EXPORT int ncclCommAbort(Communicator *communicator) {
	Operation operation(communicator->pair);
	answer(__func__);
	delete communicator;
	aborts++;
	return success;
}

EXPORT int ncclCommGetAsyncError(Communicator *, int *result) {
	*result = refusal(__func__);
	return success;
}

EXPORT int ncclGroupStart() {
	grouped = true;
	parts.clear();
	return success;
}

EXPORT int ncclSend(const void *from, size_t bytes, int type, int other, Communicator *of, CUstream stream) {
	return add(__func__, {of, other, (char *)from, bytes, stream, true}, type);
}

EXPORT int ncclRecv(void *to, size_t bytes, int type, int other, Communicator *of, CUstream stream) {
	return add(__func__, {of, other, (char *)to, bytes, stream, false}, type);
}

EXPORT int ncclGroupEnd() {
	grouped = false;
	int failed = refusal(__func__);
	if (parts.size() != 2 || parts[0].sends == parts[1].sends) return failed != 0 ? failed : (int)invalid_usage;
	auto operation = std::make_shared<Operation>(parts[0].of->pair);
	for (int before = aborts; failed == stall && aborts == before;) usleep(1000);
	if (failed != 0) return failed;
	if (!operation->alone) return invalid_usage;
	failed = parts[0].sends ? copy(parts[0], parts[1], operation) : copy(parts[1], parts[0], operation);
	usleep(200);
	return failed;
}
