//go:build onednn && cgo && linux && amd64

#define _GNU_SOURCE
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "device.h"

// A huge page of amd64. Smaller allocations come from the C library.
static const size_t huge = (size_t)2 << 20;

static size_t round_up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

// Large memory is mapped on a huge page's boundary: one more page is asked for, and what lies around the aligned part is
// given back.
static void *map(size_t bytes) {
    size_t asked = bytes + huge;
    char *start = mmap(NULL, asked, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (start == MAP_FAILED) return NULL;
    char *aligned = (char *)round_up((uintptr_t)start, huge);
    if (aligned > start) munmap(start, (size_t)(aligned - start));
    size_t after = (size_t)(start + asked - (aligned + bytes));
    if (after > 0) munmap(aligned + bytes, after);
    madvise(aligned, bytes, MADV_HUGEPAGE);  // a hint: a kernel without huge pages refuses it
    return aligned;
}

void *avg_allocate(size_t bytes) {
    if (bytes >= huge) return map(round_up(bytes, huge));
    size_t rounded = round_up(bytes ? bytes : 1, 64);
    void *memory = aligned_alloc(64, rounded);
    return memory ? memset(memory, 0, rounded) : NULL;
}

void avg_free(void *memory, size_t bytes) {
    if (bytes >= huge)
        munmap(memory, round_up(bytes, huge));
    else
        free(memory);
}
