// What one thread runs of the operations for recurrent networks, of smoothed losses and of averaging optimizers; see
// kernels.h.
#ifndef AVG_RECURRENT_H
#define AVG_RECURRENT_H

#include <stddef.h>
#include <stdint.h>

struct asgd {
    float learning_rate, weight_decay, grad_scale, share;
};

struct recurrent_kernels {
    void (*scaled)(float *y, const float *x, float a, size_t n);

    // One sample at one position: gates, recurrent, which is added to them, and dgates (4,n), all others (n). before holds the
    // cells of the position before; NULL where there is none, as recurrent.
    void (*lstm)(float *out, float *gates, const float *recurrent, float *cells, const float *before, size_t n);
    void (*lstm_backward)(float *dgates, float *dcells, const float *dh, const float *dout, const float *gates,
                          const float *cells, const float *before, size_t n);

    // One query against `keys` keys of n units; those with mask 0 are not attended to (NULL: none).
    void (*additive)(float *probabilities, const float *q, const float *k, const float *v, const int32_t *mask, size_t keys,
                     size_t n);
    void (*softmax_backward)(float *dp, const float *p, size_t n);
    // n of `stride` units: dq is set, dk and dv are added to.
    void (*additive_backward)(float *dq, float *dk, float *dv, const float *ds, const float *q, const float *k,
                              const float *v, size_t keys, size_t n, size_t stride);

    void (*smoothed)(float *losses, float *dlogits, const float *logits, const int32_t *targets, size_t rows,
                     size_t vocabulary, float scale, float smoothing);
    void (*asgd)(float *p, const float *g, float *s, float *delta, size_t n, struct asgd a);
};

#endif
