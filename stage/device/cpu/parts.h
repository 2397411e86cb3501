// How an operation is cut over the threads of its device.
#ifndef AVG_PARTS_H
#define AVG_PARTS_H

#include <omp.h>

#include "device.h"

// A part is elements [from, from + n) of an operation's range.
struct part {
    size_t from, n;
};

// part_of cuts total into equal parts at multiples of quantum.
static inline struct part part_of(size_t total, size_t quantum, int index, int parts) {
    size_t units = (total + quantum - 1) / quantum;
    size_t from = units * (size_t)index / (size_t)parts * quantum, to = units * ((size_t)index + 1) / (size_t)parts * quantum;
    if (to > total) to = total;
    return (struct part){from, from < to ? to - from : 0};
}

// parts_for is how many threads an operation on `bytes` is worth: waking one costs about what moving 128 KiB does.
static inline int parts_for(const struct avg_device *d, size_t bytes) {
    size_t worth = bytes / ((size_t)128 << 10);
    return worth < 2 ? 1 : worth < (size_t)d->threads ? (int)worth : d->threads;
}

// PARTS runs a block for every part of total, each on a thread. One part runs in the caller and wakes no thread.
// No result depends on the number of parts: they cut what is independent, and quantum is a cache line or more.
#define PARTS(total, quantum, bytes, ...)                                                                 \
    do {                                                                                                  \
        const int parts = parts_for(d, bytes);                                                            \
        if (parts == 1) {                                                                                 \
            const struct part at = {0, total};                                                            \
            __VA_ARGS__                                                                                                   \
        } else {                                                                                          \
            _Pragma("omp parallel for num_threads(parts) schedule(static, 1)") for (int index = 0; index < parts; index++) { \
                const struct part at = part_of(total, quantum, index, parts);                             \
                __VA_ARGS__                                                                                               \
            }                                                                                             \
        }                                                                                                 \
    } while (0)

enum { LINE = 16 };  // floats in a cache line

// BLOCKS runs code for blocks of fixed length of n elements, `at`, each on one thread. What the code sets `sum` to for each is added to
// *total, unless that is NULL, in the order of the blocks: the same bits with any number of threads. A block is short enough that what
// follows on the same elements finds them in the second-level cache.
enum { BLOCK = 1 << 14, GROUP = 256 };

#define BLOCKS(length, bytes, total, ...)                                                                                 \
    for (size_t start = 0; start < (length); start += (size_t)BLOCK * GROUP) {                                            \
        double sums[GROUP];                                                                                               \
        const size_t left = (length) - start, blocks = left > (size_t)BLOCK * GROUP ? GROUP : (left + BLOCK - 1) / BLOCK; \
        PARTS(blocks, 1, (left < blocks * BLOCK ? left : blocks * BLOCK) * (bytes),                                       \
              for (size_t block = at.from; block < at.from + at.n; block++) {                                             \
                  const size_t from = block * BLOCK;                                                                      \
                  const struct part at = {start + from, left - from < BLOCK ? left - from : BLOCK};                       \
                  double sum = 0;                                                                                         \
                  __VA_ARGS__                                                                                             \
                  sums[block] = sum;                                                                                      \
              });                                                                                                         \
        if (total)                                                                                                        \
            for (size_t block = 0; block < blocks; block++) *(total) += sums[block];                                      \
    }

// element is the address of the element with this index.
static inline void *element(struct elements x, size_t index) { return (char *)x.data + index * (x.bf16 ? 2 : sizeof(float)); }

#endif
