// The operations that are compiled for each instruction set: OPERATION(result, name, parameters, arguments). device.h makes of them the
// table of an instruction set and the functions that Go calls, kernels_body.h what fills the table. Their names and operands are those of
// package device in Go. Those that return int return 0, or -1 when there is no memory for scratch. No include guard.

OPERATION(void, scale, (struct avg_device *d, float *x, float a, size_t n), (d, x, a, n))
OPERATION(void, axpy, (struct avg_device *d, float *y, float a, const float *x, size_t n), (d, y, a, x, n))
OPERATION(void, lerp, (struct avg_device *d, float *y, float a, const float *x, size_t n), (d, y, a, x, n))
OPERATION(void, mul, (struct avg_device *d, float *y, const float *x, size_t n), (d, y, x, n))
OPERATION(void, add, (struct avg_device *d, struct elements out, struct elements a, struct elements b, size_t n), (d, out, a, b, n))
OPERATION(void, convert, (struct avg_device *d, struct elements y, struct elements x, size_t n), (d, y, x, n))
OPERATION(void, copy_columns,
          (struct avg_device *d, float *y, const float *x, size_t rows, size_t columns, size_t y_stride, size_t x_stride, int add),
          (d, y, x, rows, columns, y_stride, x_stride, add))
OPERATION(void, squared_norm, (struct avg_device *d, double *total, const float *x, size_t n), (d, total, x, n))
OPERATION(void, sum_rows, (struct avg_device *d, float *sum, struct elements x, size_t rows, size_t columns), (d, sum, x, rows, columns))

OPERATION(void, unary, (struct avg_device *d, int function, struct elements y, struct elements x, size_t n), (d, function, y, x, n))
OPERATION(void, unary_backward,
          (struct avg_device *d, int function, struct elements dx, struct elements dy, struct elements x, size_t n), (d, function, dx, dy, x, n))
OPERATION(void, swiglu, (struct avg_device *d, struct elements y, struct elements gate, struct elements up, size_t n), (d, y, gate, up, n))
OPERATION(void, swiglu_backward,
          (struct avg_device *d, struct elements dgate, struct elements dup, struct elements dy, struct elements gate, struct elements up, size_t n),
          (d, dgate, dup, dy, gate, up, n))

// A root-mean-square norm has no mean, bias and dbias. plus may be NULL.
OPERATION(void, norm,
          (struct avg_device *d, struct elements y, float *mean, float *rstd, const float *x, const float *weight, const float *bias, size_t rows,
           size_t columns, float epsilon),
          (d, y, mean, rstd, x, weight, bias, rows, columns, epsilon))
OPERATION(void, norm_backward,
          (struct avg_device *d, float *dx, struct elements dy, const float *x, const float *mean, const float *rstd, const float *weight,
           const float *plus, size_t rows, size_t columns),
          (d, dx, dy, x, mean, rstd, weight, plus, rows, columns))
OPERATION(void, norm_backward_weight,
          (struct avg_device *d, float *dweight, float *dbias, struct elements dy, const float *x, const float *mean, const float *rstd, size_t rows,
           size_t columns),
          (d, dweight, dbias, dy, x, mean, rstd, rows, columns))

// dlogits may be NULL.
OPERATION(void, cross_entropy,
          (struct avg_device *d, float *losses, float *dlogits, const float *logits, const int32_t *targets, size_t rows, size_t vocabulary,
           float scale, float smoothing),
          (d, losses, dlogits, logits, targets, rows, vocabulary, scale, smoothing))
OPERATION(void, adam, (struct avg_device *d, float *p, float *m, float *v, struct stepped s, size_t n, struct adam a), (d, p, m, v, s, n, a))
OPERATION(void, sgd, (struct avg_device *d, float *p, float *m, struct stepped s, size_t n, struct sgd a), (d, p, m, s, n, a))
OPERATION(void, asgd, (struct avg_device *d, float *p, float *state, struct stepped s, size_t n, struct asgd a), (d, p, state, s, n, a))

// `runs` runs of n elements, each with `copies` rows of n elements that share the draws first + run * n + 0, 1, ...
OPERATION(void, dropout,
          (struct avg_device *d, struct elements y, struct elements x, size_t runs, size_t copies, size_t n, uint64_t first, struct dropout o),
          (d, y, x, runs, copies, n, first, o))
OPERATION(void, drop_rows,
          (struct avg_device *d, float *y, const float *x, const int32_t *ids, size_t rows, size_t columns, struct dropout o),
          (d, y, x, ids, rows, columns, o))
// table (t,s) holds for each position s/2 cosines, then s/2 sines.
OPERATION(void, rotate,
          (struct avg_device *d, struct elements y, struct elements x, struct rotation o, const float *table, size_t rows), (d, y, x, o, table, rows))

// add: the rows are added to out; else positions may be NULL.
OPERATION(void, embed,
          (struct avg_device *d, float *out, const float *tokens, const float *positions, const int32_t *ids, size_t rows, size_t t, size_t width,
           int add),
          (d, out, tokens, positions, ids, rows, t, width, add))
OPERATION(void, embed_backward,
          (struct avg_device *d, float *dtokens, float *dpositions, const float *dout, const int32_t *ids, size_t rows, size_t t, size_t width),
          (d, dtokens, dpositions, dout, ids, rows, t, width))

// The backward only reads out and lse.
OPERATION(int, attention, (struct avg_device *d, struct attention x), (d, x))
OPERATION(int, attention_backward, (struct avg_device *d, struct attention x), (d, x))
OPERATION(int, cached_attention, (struct avg_device *d, struct cached_attention x), (d, x))
// For processors with bf16_pairs.
OPERATION(int, gradient, (struct avg_device *d, struct gradient g), (d, g))
OPERATION(int, strips, (struct avg_device *d, struct few_rows p), (d, p))
OPERATION(int, few_rows, (struct avg_device *d, struct few_rows p), (d, p))

// These two return 0, or the oneDNN status.
OPERATION(int, lstm, (struct avg_device *d, struct avg_lstm *l, struct lstm x), (d, l, x))
OPERATION(int, lstm_backward, (struct avg_device *d, struct avg_lstm *l, struct lstm x), (d, l, x))
OPERATION(void, additive,
          (struct avg_device *d, float *probabilities, const float *q, const float *k, const float *v, const int32_t *mask, size_t b, size_t t,
           size_t n),
          (d, probabilities, q, k, v, mask, b, t, n))
OPERATION(void, additive_backward,
          (struct avg_device *d, float *dq, float *dk, float *dv, float *dprobabilities, const float *probabilities, const float *q, const float *k,
           const float *v, size_t b, size_t t, size_t n),
          (d, dq, dk, dv, dprobabilities, probabilities, q, k, v, b, t, n))
OPERATION(void, weight_norm, (struct avg_device *d, float *v, const float *direction, const float *length, size_t n),
          (d, v, direction, length, n))
OPERATION(void, weight_norm_backward,
          (struct avg_device *d, float *ddirection, float *dlength, const float *dv, const float *direction, const float *length, size_t n),
          (d, ddirection, dlength, dv, direction, length, n))

OPERATION(int, group_moments, (struct avg_device *d, float *mean, float *variance, const float *x, struct group_norm n), (d, mean, variance, x, n))
OPERATION(int, group_norm,
          (struct avg_device *d, float *y, const float *x, const float *skip, const float *mean, const float *variance, const float *weight,
           const float *bias, struct group_norm n),
          (d, y, x, skip, mean, variance, weight, bias, n))
OPERATION(int, group_norm_backward,
          (struct avg_device *d, float *dx, float *dz, float *sums, const float *dy, const float *x, const float *skip, const float *mean,
           const float *variance, const float *weight, const float *bias, struct group_norm n),
          (d, dx, dz, sums, dy, x, skip, mean, variance, weight, bias, n))
OPERATION(void, max_pool, (struct avg_device *d, float *y, const float *x, struct pool p), (d, y, x, p))
OPERATION(void, max_pool_backward, (struct avg_device *d, float *dx, const float *dy, const float *x, struct pool p), (d, dx, dy, x, p))
OPERATION(void, average_pool, (struct avg_device *d, float *y, const float *x, size_t b, size_t p, size_t c), (d, y, x, b, p, c))
OPERATION(void, average_pool_backward, (struct avg_device *d, float *dx, const float *dy, size_t b, size_t p, size_t c), (d, dx, dy, b, p, c))
