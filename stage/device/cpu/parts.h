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
            __VA_ARGS__                                                                                   \
        } else {                                                                                          \
            _Pragma("omp parallel for num_threads(parts) schedule(static, 1)") for (int index = 0; index < parts; index++) { \
                const struct part at = part_of(total, quantum, index, parts);                             \
                __VA_ARGS__                                                                               \
            }                                                                                             \
        }                                                                                                 \
    } while (0)

enum { LINE = 16 };  // floats in a cache line

#endif
