// The operations of recurrent.h on a whole device; see device.h.
#ifndef AVG_RECURRENT_OPS_H
#define AVG_RECURRENT_OPS_H

#include "device.h"

// The products of an LSTM's positions, for one shape: h W^T of one position of all samples, and the gradient that goes back.
// The weights are laid out once per pass, as the products like them, for all positions; the other operands are gathered
// without gaps, since oneDNN's faster products ask for that. Its own LSTM has no masks; it is within a tenth of this at
// widths that are multiples of 16 and half as fast at others (1150, the width of AWD-LSTM).
struct avg_lstm;
int avg_lstm_new(struct avg_device *d, size_t b, size_t t, size_t h, int bf16, struct avg_lstm **lstm);
void avg_lstm_free(struct avg_lstm *l);

// Operands as in device.LSTM; weight and previous are bf16 where the products were made for it. They return 0, or the oneDNN status.
int avg_lstm_run(struct avg_device *d, struct avg_lstm *l, float *out, float *gates, float *cells, void *previous,
                 const void *weight, const float *first, const int32_t *mask, size_t out_stride, int reverse);
int avg_lstm_run_backward(struct avg_device *d, struct avg_lstm *l, float *dgates, float *carry, const float *dout,
                          const float *gates, const float *cells, const void *weight, const int32_t *mask, size_t out_stride,
                          int reverse);

void avg_additive(struct avg_device *d, float *probabilities, const float *q, const float *k, const float *v,
                  const int32_t *mask, size_t b, size_t t, size_t n);
void avg_additive_backward(struct avg_device *d, float *dq, float *dk, float *dv, float *dprobabilities,
                           const float *probabilities, const float *q, const float *k, const float *v, size_t b, size_t t,
                           size_t n);
void avg_weight_norm(struct avg_device *d, float *v, const float *direction, const float *length, size_t n);
void avg_weight_norm_backward(struct avg_device *d, float *ddirection, float *dlength, const float *dv,
                              const float *direction, const float *length, size_t n);
void avg_copy_columns(struct avg_device *d, float *y, const float *x, size_t rows, size_t columns, size_t y_stride,
                      size_t x_stride, int add);
void avg_drop_rows(struct avg_device *d, float *y, const float *x, const int32_t *ids, size_t rows, size_t columns,
                   struct dropout o);
void avg_smoothed(struct avg_device *d, float *losses, float *dlogits, const float *logits, const int32_t *targets,
                  size_t rows, size_t vocabulary, float scale, float smoothing);
void avg_asgd(struct avg_device *d, float *p, float *state, struct stepped s, size_t n, struct asgd a);

#endif
