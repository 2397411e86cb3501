// Packs of consecutive elements, which a thread loads and stores at once: 16 bytes at a time where the address allows it. What does memory's work
// has a pack for each thread, so that a warp asks for 512 bytes. Bits do not depend on how a pack was loaded.
#pragma once
#include "common.cuh"

#ifdef __CUDACC__
#define UNROLL _Pragma("unroll") // before loops whose counter indexes what must lie in registers
#define UNROLL_BY_2 _Pragma("unroll 2")
#define ROLL _Pragma("unroll 1") // before loops whose body is long
#else
#define UNROLL
#define UNROLL_BY_2
#define ROLL
#endif

template <int N> struct Pack {
	float x[N];
};

// Words are what memory moves at once.
template <int BYTES> struct Words;
template <> struct Words<4> {
	typedef unsigned type;
};
template <> struct Words<8> {
	typedef uint2 type;
};
template <> struct Words<16> {
	typedef uint4 type;
};

// move copies N elements, a power of 2 of them, by words of up to 16 bytes. It is false, and copies nothing, where the addresses do not allow it.
template <int N, class T> DEVICE bool move(T *to, const T *from, const void *memory) {
	const int bytes = N * sizeof(T) < 16 ? N * sizeof(T) : 16;
	typedef typename Words<bytes>::type Word;
	if ((unsigned long)memory % bytes != 0) return false;
	UNROLL for (int i = 0; i < N * (int)sizeof(T) / bytes; i++) ((Word *)to)[i] = ((const Word *)from)[i];
	return true;
}

// load is the pack of x that begins at element i, of n; what lies beyond is 0.
template <int N, class T> DEVICE void load_elements(T (&pack)[N], const T *x, long i, long n) {
	if (i + N <= n && move<N>(pack, x + i, x + i)) return;
	UNROLL for (int c = 0; c < N; c++) pack[c] = i + c < n ? x[i + c] : T();
}

template <int N, class T> DEVICE void store_elements(T *x, const T (&pack)[N], long i, long n) {
	if (i + N <= n && move<N>(x + i, pack, x + i)) return;
	UNROLL for (int c = 0; c < N; c++) {
		if (i + c < n) x[i + c] = pack[c];
	}
}

template <int N> DEVICE Pack<N> load(const float *x, long i, long n) {
	alignas(16) Pack<N> pack;
	load_elements(pack.x, x, i, n);
	return pack;
}

template <int N> DEVICE Pack<N> load(In in, long i, long n) {
	if (!in.brain) return load<N>((const float *)in.data, i, n);
	alignas(16) bf16 narrow[N];
	Pack<N> pack;
	load_elements(narrow, (const bf16 *)in.data, i, n);
	UNROLL for (int c = 0; c < N; c++) pack.x[c] = widen(narrow[c]);
	return pack;
}

template <int N> DEVICE void store(float *x, const Pack<N> &pack, long i, long n) {
	alignas(16) Pack<N> copy = pack;
	store_elements(x, copy.x, i, n);
}

template <int N> DEVICE void store(bf16 *x, const Pack<N> &pack, long i, long n) {
	alignas(16) bf16 rounded[N];
	UNROLL for (int c = 0; c < N; c++) rounded[c] = narrow(pack.x[c]);
	store_elements(x, rounded, i, n);
}

template <int N> DEVICE void store(Out out, const Pack<N> &pack, long i, long n) {
	if (out.brain) store((bf16 *)out.data, pack, i, n);
	else store((float *)out.data, pack, i, n);
}

// The packs of N that a thread of a grid of any size has of 0 to n-1: i is the first element of one.
#define EACH_PACK(N, i, n) long i = (N) * (blockIdx.x * (long)blockDim.x + threadIdx.x); i < (n); i += (N) * (gridDim.x * (long)blockDim.x)

// combine is f of the elements of packs.
template <int N, class F, class... Packs> DEVICE Pack<N> combine(F f, const Packs &... packs) {
	Pack<N> result;
	UNROLL for (int c = 0; c < N; c++) result.x[c] = f(packs.x[c]...);
	return result;
}

// map sets n elements of out to f of those of operands.
template <int N, class F, class... Operands> DEVICE void map(Out out, long n, F f, Operands... operands) {
	for (EACH_PACK(N, i, n)) store(out, combine<N>(f, load<N>(operands, i, n)...), i, n);
}
