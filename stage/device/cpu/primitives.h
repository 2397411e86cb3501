// A oneDNN primitive of fixed shape, with its memories and the reorders of those operands that it takes otherwise than the caller has them.
#ifndef AVG_PRIMITIVES_H
#define AVG_PRIMITIVES_H

#include "device.h"

// TRY makes a call unless one before it failed, and keeps its status.
#define TRY(call)                                    \
    do {                                             \
        if (status == dnnl_success) status = (call); \
    } while (0)

// What a primitive works on: its operands, one of which is the result.
enum { OPERANDS = 3, BIAS = OPERANDS, SCRATCH, MEMORIES };

struct avg_product {
    int names[OPERANDS];                             // oneDNN's, as DNNL_ARG_SRC
    int result, adds;                                // which of them is the result; its reorder adds to what the caller has
    dnnl_primitive_t compute, reorders[OPERANDS];    // a reorder is NULL where the primitive takes what the caller has
    dnnl_memory_t taken[MEMORIES], given[OPERANDS];  // what the primitive works on; the caller's, where it is something else
    size_t offsets[MEMORIES], scratch_bytes;         // in the device's scratch
    const char *implementation;
    struct gradient gradient;  // where avg_gradient computes it: k is not 0, and there is no primitive
};

// avg_describe makes the descriptor of a primitive; accumulate: its result is added to what is there.
dnnl_status_t avg_describe(struct avg_device *d, dnnl_primitive_desc_t *desc, const void *operation, const_dnnl_primitive_desc_t hint,
                           int accumulate);

// avg_made returns the product and the status of what made it, or NULL where that failed.
int avg_made(struct avg_product *p, dnnl_status_t status, struct avg_product **product);

// avg_primitive_create fills in the rest of p, whose names, result and adds are set. given are the caller's operands; bias may be NULL.
dnnl_status_t avg_primitive_create(struct avg_device *d, struct avg_product *p, const void *operation, const_dnnl_primitive_desc_t hint,
                                   int accumulate, const dnnl_memory_desc_t given[OPERANDS], const dnnl_memory_desc_t *bias);

// avg_primitive_run runs the reorders and the primitive. An operand that is NULL is that of the run before: packed, it still lies in scratch if
// no other operation ran since.
dnnl_status_t avg_primitive_run(struct avg_device *d, struct avg_product *p, const void *const operands[OPERANDS], const float *bias);

#endif
