#include "fibers.h"

#include <sys/mman.h>

#include <algorithm>
#include <utility>

Index threadIdx, blockIdx, blockDim, gridDim;

extern "C" {
extern char __start_shared_memory[], __stop_shared_memory[];

// switch_stack saves the registers that a call keeps on this stack, whose pointer it stores, and takes those of another.
void switch_stack(void **from, void *to);
}

__asm__(R"(
.text
switch_stack:
	push %rbp
	push %rbx
	push %r12
	push %r13
	push %r14
	push %r15
	mov %rsp, (%rdi)
	mov %rsi, %rsp
	pop %r15
	pop %r14
	pop %r13
	pop %r12
	pop %rbx
	pop %rbp
	ret
)");

namespace {

const size_t stack_bytes = 64 << 10;
const unsigned most_threads = 1024, lanes = 32;

// Barrier lets nobody on before so many have come.
struct Barrier {
	unsigned come = 0, passed = 0;
};

struct Warp {
	Barrier barrier;
	uint64_t bits[2][lanes]; // of the exchange in progress, and of the one before
	void *handed[lanes];     // over by those that meet in together, to bodies
	void (*bodies[lanes])(void *const *);
};

struct Fiber {
	void *stack;
	bool ended;
	Barrier *waits; // until it is passed once more
	unsigned passed;
	unsigned exchanges;
};

Fiber fibers[most_threads];
Warp warps[most_threads / lanes];
Barrier all;
unsigned threads, running;
void *scheduler;
const std::function<void()> *thread_body;
unsigned launches;
uint64_t blocks_run;
bool early;
std::string stopped; // why, if it was
const size_t most_dynamic = 128 << 10;
char *dynamic_at;
size_t dynamic_bytes;

void wait(Barrier &barrier, unsigned members) {
	if (++barrier.come == members) {
		barrier.come = 0;
		barrier.passed++;
		return;
	}
	Fiber &self = fibers[running];
	self.waits = &barrier;
	self.passed = barrier.passed;
	switch_stack(&self.stack, scheduler);
}

void begin() {
	(*thread_body)();
	Fiber &self = fibers[running];
	self.ended = true;
	switch_stack(&self.stack, scheduler);
}

// prepare gives a fiber a stack on which switch_stack returns to begin.
void prepare(Fiber &fiber, char *top) {
	void **stack = (void **)top;
	*--stack = nullptr; // begin never returns; calls keep the stack at multiples of 16
	*--stack = (void *)begin;
	stack -= 6;
	fiber = {stack, false, nullptr, 0, 0};
}

Index place(unsigned i, Index size) { return {i % size.x, i / size.x % size.y, i / size.x / size.y}; }

// run_warp runs the fibers of a warp that wait for nothing, each once, and returns whether there were any.
bool run_warp(unsigned first, bool descending) {
	bool any = false;
	unsigned members = std::min(threads - first, lanes);
	for (unsigned i = 0; i < members; i++) {
		running = first + (descending ? members - 1 - i : i);
		Fiber &fiber = fibers[running];
		if (fiber.ended || (fiber.waits && fiber.waits->passed == fiber.passed)) continue;
		fiber.waits = nullptr;
		threadIdx = place(running, blockDim);
		switch_stack(&scheduler, fiber.stack);
		any = true;
	}
	return any;
}

// run_block runs each warp as far ahead of the others as it can go.
bool run_block(bool descending) {
	blocks_run++;
	memset(__start_shared_memory, 0xff, __stop_shared_memory - __start_shared_memory);
	memset(dynamic_at, 0xff, dynamic_bytes);
	static char *stacks = (char *)mmap(nullptr, most_threads * stack_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	all = Barrier();
	for (unsigned i = 0; i < threads; i++) {
		warps[i / lanes].barrier = Barrier();
		prepare(fibers[i], stacks + (i + 1) * stack_bytes);
	}
	unsigned count = (threads + lanes - 1) / lanes;
	for (bool progress = true; progress && stopped.empty();) {
		progress = false;
		for (unsigned i = 0; i < count; i++) {
			while (stopped.empty() && run_warp((descending ? count - 1 - i : i) * lanes, descending)) progress = true;
		}
	}
	return std::all_of(fibers, fibers + threads, [](const Fiber &f) { return f.ended; });
}

} // namespace

void *dynamic_shared() { return dynamic_at; }

void __syncthreads() { wait(all, threads); }

uint64_t exchange(uint64_t bits, int with) {
	unsigned self = running, lane = self % lanes, first = self - lane;
	Warp &warp = warps[self / lanes];
	uint64_t *slots = warp.bits[fibers[self].exchanges++ % 2];
	slots[lane] = bits;
	wait(warp.barrier, threads - first < lanes ? threads - first : lanes);
	return slots[lane ^ with];
}

void together(void (*body)(void *const *), void *mine) {
	unsigned lane = running % lanes, first = running - lane;
	if (threads - first < lanes) stop("an instruction of a warp that has less than 32 threads");
	Warp &warp = warps[running / lanes];
	warp.handed[lane] = mine;
	warp.bodies[lane] = body;
	if (warp.barrier.come + 1 == lanes) {
		if (std::any_of(warp.bodies, warp.bodies + lanes, [&](auto other) { return other != body; })) stop("the lanes of a warp run different instructions");
		body(warp.handed);
		std::fill(warp.bodies, warp.bodies + lanes, nullptr);
	}
	wait(warp.barrier, lanes);
}

void stop(const char *why) {
	stopped = why;
	switch_stack(&fibers[running].stack, scheduler);
}

bool is_shared(const void *at, size_t bytes) {
	const char *from = (const char *)at, *to = from + bytes;
	return (from >= __start_shared_memory && to <= __stop_shared_memory) || (from >= dynamic_at && to <= dynamic_at + dynamic_bytes);
}

bool copies_are_early() { return early; }

unsigned thread_number() { return running; }
uint64_t block_number() { return blocks_run; }

std::string run_grid(Index grid, Index block, size_t shared_bytes, const std::function<void()> &body) {
	static char *area = (char *)mmap(nullptr, 2 * most_dynamic, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	static bool usable = mprotect(area, most_dynamic, PROT_READ | PROT_WRITE) == 0;
	if (!usable || shared_bytes > most_dynamic || shared_bytes % 16 != 0) return "dynamic shared memory of " + std::to_string(shared_bytes) + " bytes";
	dynamic_at = area + most_dynamic - shared_bytes;
	dynamic_bytes = shared_bytes;
	gridDim = grid;
	blockDim = block;
	threads = block.x * block.y * block.z;
	if (threads == 0 || threads > most_threads) return "a block of " + std::to_string(threads) + " threads";
	thread_body = &body;
	early = launches / 2 % 2;
	bool descending = __builtin_parity(launches++); // not in turn: an operation of two kernels would run each in one order
	unsigned blocks = grid.x * grid.y * grid.z;
	for (unsigned i = 0; i < blocks; i++) {
		blockIdx = place(descending ? blocks - 1 - i : i, grid);
		bool ended = run_block(descending);
		if (!stopped.empty()) return std::exchange(stopped, "");
		if (!ended) return "threads of block " + std::to_string(blockIdx.x) + " wait for threads that have ended, or wait elsewhere";
	}
	return "";
}
