// CUDA C++ for a compiler of the host: each thread of a block is a fiber, and the blocks of a grid run one after the other. Shared memory holds
// 0xff bytes when a block begins. Blocks and threads run in ascending or in descending order, launch by launch, so that results which
// depend on the order differ from run to run.
#pragma once

#include <math.h>
#include <stdint.h>
#include <string.h>

struct Index {
	unsigned x, y, z;
};

struct alignas(8) uint2 {
	unsigned x, y;
};

struct alignas(16) uint4 {
	unsigned x, y, z, w;
};

// fiber is what a thread sees of itself. The members of all threads of a block but threadIdx are the same.
extern Index threadIdx, blockIdx, blockDim, gridDim;

#define __global__
#define __device__
#define __launch_bounds__(...)
#define __shared__ static __attribute__((section("shared_memory")))

void __syncthreads();

// dynamic_shared is the shared memory that the launch asks for. Behind its end nothing is mapped.
void *dynamic_shared();

// exchange gives the bits that another lane of the warp hands over at the same time.
uint64_t exchange(uint64_t bits, int with);

template <class T> T __shfl_xor_sync(unsigned, T v, int mask) {
	uint64_t bits = 0;
	memcpy(&bits, &v, sizeof v);
	bits = exchange(bits, mask);
	memcpy(&v, &bits, sizeof v);
	return v;
}

// __ballot_sync is the set of the lanes whose bit is set, of a full warp.
unsigned __ballot_sync(unsigned, bool mine);

inline int __popc(unsigned bits) { return __builtin_popcount(bits); }
inline int __ffs(unsigned bits) { return __builtin_ffs(bits); }

inline unsigned __float_as_uint(float v) {
	unsigned bits;
	memcpy(&bits, &v, sizeof v);
	return bits;
}

inline float __uint_as_float(unsigned bits) {
	float v;
	memcpy(&v, &bits, sizeof v);
	return v;
}

// One fiber runs at a time, so that whatever it does is atomic and seen by all.
inline unsigned atomicAdd(unsigned *at, unsigned v) {
	unsigned before = *at;
	*at += v;
	return before;
}

inline int atomicCAS(int *at, int expected, int v) {
	int before = *at;
	if (before == expected) *at = v;
	return before;
}

template <class T> T __ldcg(const T *at) { return *at; }
inline void __threadfence() {}
inline void __threadfence_system() {}
