// Products of small matrices by the lanes of a warp, and the copies and loads that feed them: instructions of compute capability 8.0. On the
// host the shim of package cudatest has them.
//
// Lane 4 g + t of a warp holds, in registers of two bf16 each (the lower half first):
//
//	a, 16 rows of 16:  (g, 2t), (g + 8, 2t), (g, 2t + 8), (g + 8, 2t + 8), each with the element to its right
//	b, 16 rows of 8:   (2t, g), (2t + 8, g), each with the element below it
//	c, 16 rows of 8:   (g, 2t), (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1), as floats
#pragma once
#include "pack.cuh"

#ifdef __CUDACC__

// mma adds a b to c. Products are exact; the sums are the device's, in float.
DEVICE void mma(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
	asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
	    : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
	    : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// load_matrices loads four matrices of 8 rows of 8 elements from shared memory: lane 8 i + r has the address of row r of matrix i. Lane 4 g + t
// gets elements (g, 2t) and (g, 2t + 1) of each.
DEVICE void load_matrices(unsigned (&x)[4], const bf16 *row) {
	asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
	             : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
	             : "r"((unsigned)__cvta_generic_to_shared(row)));
}

// load_transposed is load_matrices of which lane 4 g + t gets elements (2t, g) and (2t + 1, g).
DEVICE void load_transposed(unsigned (&x)[4], const bf16 *row) {
	asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
	             : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
	             : "r"((unsigned)__cvta_generic_to_shared(row)));
}

// copy_16 and copy_4 begin to copy so many bytes to shared memory, or zeros in their place. Both addresses are multiples of the size.
DEVICE void copy_16(void *to, const void *from, bool present) {
	asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"((unsigned)__cvta_generic_to_shared(to)), "l"(from), "r"(present ? 16 : 0)
	             : "memory");
}

DEVICE void copy_4(void *to, const void *from, bool present) {
	asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"((unsigned)__cvta_generic_to_shared(to)), "l"(from), "r"(present ? 4 : 0)
	             : "memory");
}

// copies_begun ends a group of copies; copies_ended waits for all groups of this thread but the last so many.
DEVICE void copies_begun() { asm volatile("cp.async.commit_group;" ::: "memory"); }

template <int PENDING> DEVICE void copies_ended() { asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory"); }

// pair rounds two floats to bf16.
DEVICE unsigned pair(float low, float high) {
	unsigned both;
	asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
	return both;
}

// power is 2 to the v, within 2 units in the last place; 0 where that is subnormal.
DEVICE float power(float v) {
	asm("ex2.approx.ftz.f32 %0, %0;" : "+f"(v));
	return v;
}

#endif
