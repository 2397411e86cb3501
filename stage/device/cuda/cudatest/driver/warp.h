// The instructions of kernels/mma.cuh, on the host.
#pragma once

#include "shim.h"

typedef unsigned short bf16;

void mma(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1);
void load_matrices(unsigned (&x)[4], const bf16 *row);
void load_transposed(unsigned (&x)[4], const bf16 *row);

// Copies to shared memory are made when the thread waits for them, which is as late as they may be; in other launches at once.
void copy_16(void *to, const void *from, bool present);
void copy_4(void *to, const void *from, bool present);
void copies_begun();
void copies_ended(unsigned pending);
template <unsigned PENDING> void copies_ended() { copies_ended(PENDING); }

unsigned pair(float low, float high);
inline float power(float v) { return exp2f(v); }
