// What the kernels share. They are compiled twice: for devices, and by a C++ compiler on the shim of package cudatest. Products are rounded
// before they are added (--fmad=false); what may fuse says so by calling fmaf. Every argument of a kernel takes 8 bytes at most.
#pragma once

#define KERNEL extern "C" __global__ void
#define DEVICE static __device__
#ifdef __CUDACC__
#define CALLED DEVICE __noinline__ // in place of a copy for each caller
#else
#define CALLED DEVICE
#endif

// The indices that a thread of a grid of any size has of 0 to n-1.
#define EACH(i, n) long i = blockIdx.x * (long)blockDim.x + threadIdx.x; i < (n); i += gridDim.x * (long)blockDim.x

#ifndef INFINITY // NVRTC has no headers
#define INFINITY __uint_as_float(0x7f800000)
#endif

typedef unsigned short bf16;

#ifdef __CUDACC__
// dynamic_shared is the shared memory that a launch asks for, beside what its kernel declares.
DEVICE void *dynamic_shared() {
	extern __shared__ uint4 dynamic[];
	return dynamic;
}
#endif

// What kernels refuse to read: device.CheckIDs, where the ids are.
struct Fault {
	int found;      // 1: the rest says what
	int operation;  // of the table in fault.go
	long index, id, low, count;
};

DEVICE float widen(bf16 v) { return __uint_as_float((unsigned)v << 16); }

// narrow is device.RoundBF16.
DEVICE bf16 narrow(float v) {
	unsigned bits = __float_as_uint(v);
	if (v != v) return bits >> 16 | 0x40;
	return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

// latest sets numbers that change from run to run. A kernel is launched with them; in a graph, which keeps what it was launched with, they lie in
// memory, 8 bytes each.
DEVICE void latest(const long *) {}
template <class T, class... Rest> DEVICE void latest(const long *now, T &number, Rest &... rest) {
	if (!now) return;
	number = *(const T *)now;
	latest(now + 1, rest...);
}

// In and Out are operands of float or bf16.
struct In {
	const void *data;
	bool brain;
	__device__ In(const void *data, int brain) : data(data), brain(brain) {}
	__device__ float operator[](long i) const { return brain ? widen(((const bf16 *)data)[i]) : ((const float *)data)[i]; }
};

struct Out {
	void *data;
	bool brain;
	__device__ Out(void *data, int brain) : data(data), brain(brain) {}
	__device__ void set(long i, float v) {
		if (brain) ((bf16 *)data)[i] = narrow(v);
		else ((float *)data)[i] = v;
	}
};

struct Sum {
	template <class T> __device__ T operator()(T a, T b) const { return a + b; }
};

struct Max {
	__device__ float operator()(float a, float b) const { return a != a || a > b ? a : b; }
};

// warp_sum adds v up over a warp: every lane gets the sum, with the same bits.
DEVICE float warp_sum(float v) {
	for (int distance = 16; distance > 0; distance /= 2) v += __shfl_xor_sync(~0u, v, distance);
	return v;
}

// across reduces v over the threads of a block: every thread gets the result, with the same bits.
template <class T, class Reduce> DEVICE T across(T v, T *parts, Reduce reduce) {
	for (int distance = 16; distance > 0; distance /= 2) v = reduce(v, __shfl_xor_sync(~0u, v, distance));
	__syncthreads();
	if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = v;
	__syncthreads();
	v = parts[0];
	for (int warp = 1; warp < blockDim.x / 32; warp++) v = reduce(v, parts[warp]);
	return v;
}

DEVICE float block_sum(float v) {
	__shared__ float parts[32];
	return across(v, parts, Sum());
}

DEVICE float block_max(float v) {
	__shared__ float parts[32];
	return across(v, parts, Max());
}

DEVICE double block_sum(double v) {
	__shared__ double parts[32];
	return across(v, parts, Sum());
}

// accepted reports whether an id lies in its table, which begins at low; the first that does not is the fault that Synchronize reports.
DEVICE bool accepted(Fault *fault, int operation, long index, int id, int low, long count) {
	if (id >= low && id < count) return true;
	if (atomicCAS(&fault->found, 0, 2) == 0) {
		fault->operation = operation;
		fault->index = index;
		fault->id = id;
		fault->low = low;
		fault->count = count;
		__threadfence_system();
		fault->found = 1;
	}
	return false;
}

// philox is block `at` of four numbers of the sequence of key: Philox4x32-10 (Salmon et al. 2011, section 3.3), as device.Draws has it.
DEVICE void philox(unsigned (&c)[4], unsigned long long key, unsigned long long at) {
	c[0] = (unsigned)at, c[1] = (unsigned)(at >> 32), c[2] = c[3] = 0;
	unsigned k0 = (unsigned)key, k1 = (unsigned)(key >> 32);
	for (int round = 0; round < 10; round++) {
		unsigned long long first = 0xd2511f53ull * c[0], second = 0xcd9e8d57ull * c[2];
		c[0] = (unsigned)(second >> 32) ^ c[1] ^ k0;
		c[1] = (unsigned)second;
		c[2] = (unsigned)(first >> 32) ^ c[3] ^ k1;
		c[3] = (unsigned)first;
		k0 += 0x9e3779b9;
		k1 += 0xbb67ae85;
	}
}

// draw is number `at` of the sequence of key.
DEVICE unsigned draw(unsigned long long key, unsigned long long at) {
	unsigned c[4];
	philox(c, key, at / 4);
	return at % 4 == 0 ? c[0] : at % 4 == 1 ? c[1] : at % 4 == 2 ? c[2] : c[3];
}

// quotient is a / b, neither of them negative: devices divide 32 bits far faster than 64.
DEVICE long quotient(long a, long b) { return (a | b) >> 32 == 0 ? (long)((unsigned)a / (unsigned)b) : a / b; }
