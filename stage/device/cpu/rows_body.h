// Operations on the rows of a matrix: sums and norms. Included by kernels_body.h.

// Sums over rows are of groups of ROWS rows in float and of groups in double, and are rounded once: in float, a million rows lose a
// hundredth of their sum. STRIP columns at a time, so that their sums stay in the first-level cache.
enum { ROWS = 8, STRIP = 512 };

// widen_into adds v to doubles.
INLINE void widen_into(double *to, vec v) {
    float lanes[WIDTH];
    dvec sum;
    store(lanes, v);
    for (int j = 0; j < WIDTH; j += WIDTH / 2) {
        memcpy(&sum, to + j, sizeof sum);
        sum += widen(lanes + j);
        memcpy(to + j, &sum, sizeof sum);
    }
}

// sum_group adds `rows` rows to sums.
INLINE void sum_group(double *sums, const void *x, size_t from, int rows, size_t columns, size_t stride, int bf16) {
    LANES(columns, vec s = {0};
          _Pragma("GCC unroll 8") for (int j = 0; j < rows; j++) s += fetch(x, from + (size_t)j * stride + i, part, bf16);
          widen_into(sums + i, s););
}

INLINE void sum_columns(float *sum, const void *x, size_t rows, size_t first, size_t columns, size_t stride, int bf16) {
    for (size_t at = 0; at < columns; at += STRIP) {
        const size_t n = columns - at < STRIP ? columns - at : STRIP;
        double sums[STRIP] = {0};
        size_t r = 0;
        for (; r + ROWS <= rows; r += ROWS) sum_group(sums, x, r * stride + first + at, ROWS, n, stride, bf16);
        for (; r < rows; r++) sum_group(sums, x, r * stride + first + at, 1, n, stride, bf16);
        for (size_t i = 0; i < n; i++) sum[at + i] += (float)sums[i];
    }
}

// Column sums are cut by columns, so that each adds its rows in order, whatever the number of threads.
static void sum_rows(struct avg_device *d, float *sum, struct elements x, size_t rows, size_t columns) {
    PARTS(columns, 2 * LINE, 4 * rows * columns,
          TYPED(bf16, x.bf16, sum_columns(sum + at.from, x.data, rows, at.from, at.n, columns, bf16);););
}

// The mean first, then the sums of differences from it and of their squares (the corrected two-pass algorithm: Chan,
// Golub and LeVeque 1983, equation 1.7). The mean is taken of differences from an element: where all are nearly the same, of what they
// differ in. Rounding may leave a variance below 0 where it is 0.
INLINE void moments(const float *x, size_t n, float *mean, float *variance) {
    const float origin = x[0];
    vec sums[4] = {{0}};  // in flight at once: an addition takes four cycles
    size_t quads = n / (4 * WIDTH) * (4 * WIDTH);
    for (size_t i = 0; i < quads; i += 4 * WIDTH)
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++) sums[j] += stream(x, i + (size_t)j * WIDTH, WIDTH, 0) - origin;
    vec differences = {0};
    vec squares = {0};
    LANES(n - quads, sums[0] += only(get(x + quads + i, part) - origin, part););
    float first = origin + total((sums[0] + sums[1]) + (sums[2] + sums[3])) / (float)n;
    LANES(n, vec d = only(get(x + i, part) - first, part); differences += d; squares = fused(d, d, squares););
    float correction = total(differences) / (float)n;
    *mean = first + correction;
    const float v = total(squares) / (float)n - correction * correction;
    *variance = v < 0 ? 0 : v;  // a NaN stays one
}

// mean_square is the mean of the squares of a row.
static double mean_square(const float *x, size_t n) {
    vec squares[4] = {{0}};
    size_t quads = n / (4 * WIDTH) * (4 * WIDTH);
    for (size_t i = 0; i < quads; i += 4 * WIDTH)
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++) {
            vec v = load(x + i + j * WIDTH);
            squares[j] = fused(v, v, squares[j]);
        }
    SPAN(quads, n, vec v = get(x + i, part); squares[0] = fused(v, v, squares[0]););
    return (double)total((squares[0] + squares[1]) + (squares[2] + squares[3])) / (double)n;
}

// norm_row is a row of a norm; mean and bias are NULL for that of the root mean square.
static void norm_row(struct elements y, float *mean, float *rstd, const float *x, const float *weight, const float *bias, size_t at, size_t n,
                     float epsilon) {
    float m = 0, variance;
    if (mean) moments(x + at, n, &m, &variance);
    const float s = (float)(1 / sqrt((mean ? (double)variance : mean_square(x + at, n)) + (double)epsilon));
    if (mean) *mean = m;
    *rstd = s;
    TYPED(bf16, y.bf16, LANES(n, vec xhat = (get(x + at + i, part) - m) * s; vec w = get(weight + i, part);
                              keep(y.data, at + i, bias ? fused(xhat, w, get(bias + i, part)) : xhat * w, part, bf16);););
}

static void norm(struct avg_device *d, struct elements y, float *mean, float *rstd, const float *x, const float *weight, const float *bias,
                 size_t rows, size_t columns, float epsilon) {
    PARTS(rows, 1, 8 * rows * columns, for (size_t r = at.from; r < at.from + at.n; r++)
          norm_row(y, mean ? mean + r : NULL, rstd + r, x, weight, bias, r * columns, columns, epsilon););
}

static void norm_backward_row(float *dx, struct elements dy, const float *x, const float *mean, float s, const float *weight, const float *plus,
                              size_t at, size_t n) {
    const float m = mean ? *mean : 0;
    vec sum_g = {0};
    vec sum_gx = {0};
    TYPED(bf16, dy.bf16,
          LANES(n, vec g = stream(dy.data, at + i, part, bf16) * get(weight + i, part); vec xhat = (stream(x, at + i, part, 0) - m) * s;
                sum_g += g; sum_gx = fused(g, xhat, sum_gx););  // a tail's missing elements have g = 0
          const float mean_g = mean ? total(sum_g) / (float)n : 0, mean_gx = total(sum_gx) / (float)n;
          LANES(n, vec g = fetch(dy.data, at + i, part, bf16) * get(weight + i, part); vec xhat = (get(x + at + i, part) - m) * s;
                vec v = (g - mean_g - xhat * mean_gx) * s; if (plus) v += stream(plus, at + i, part, 0); put(dx + at + i, v, part);););
}

static void norm_backward(struct avg_device *d, float *dx, struct elements dy, const float *x, const float *mean, const float *rstd,
                          const float *weight, const float *plus, size_t rows, size_t columns) {
    PARTS(rows, 1, 12 * rows * columns, for (size_t r = at.from; r < at.from + at.n; r++)
          norm_backward_row(dx, dy, x, mean ? mean + r : NULL, rstd[r], weight, plus, r * columns, columns););
}

// The gradients of a norm's weight and bias (2,STRIP) from `rows` rows; mean is NULL for a root-mean-square norm, which has no bias.
INLINE void weight_group(double *sums, const void *dy, const float *x, const float *mean, const float *rstd, size_t from, int rows,
                         size_t columns, size_t stride, int bf16) {
    LANES(columns, vec w = {0}; vec b = {0};
          _Pragma("GCC unroll 8") for (int j = 0; j < rows; j++) {
              const size_t at = from + (size_t)j * stride + i;
              vec d = fetch(dy, at, part, bf16);
              w = fused(d, (get(x + at, part) - (mean ? mean[j] : 0)) * rstd[j], w);
              b += d;
          } widen_into(sums + i, w);
          if (mean) widen_into(sums + STRIP + i, b););
}

// weight_columns has them for `columns` columns from column `first` on; dweight and dbias begin with it.
INLINE void weight_columns(float *dweight, float *dbias, const void *dy, const float *x, const float *mean, const float *rstd, size_t rows,
                           size_t first, size_t columns, size_t stride, int bf16) {
#define GROUP(count) weight_group(sums, dy, x, mean ? mean + r : NULL, rstd + r, r * stride + first + at, count, n, stride, bf16)
    for (size_t at = 0; at < columns; at += STRIP) {
        const size_t n = columns - at < STRIP ? columns - at : STRIP;
        double sums[2 * STRIP] = {0};
        size_t r = 0;
        for (; r + ROWS <= rows; r += ROWS) GROUP(ROWS);
        for (; r < rows; r++) GROUP(1);
        for (size_t i = 0; i < n; i++) dweight[at + i] += (float)sums[i];
        for (size_t i = 0; mean && i < n; i++) dbias[at + i] += (float)sums[STRIP + i];
    }
#undef GROUP
}

static void norm_backward_weight(struct avg_device *d, float *dweight, float *dbias, struct elements dy, const float *x, const float *mean,
                                 const float *rstd, size_t rows, size_t columns) {
    PARTS(columns, 2 * LINE, 8 * rows * columns,
          TYPED(bf16, dy.bf16, weight_columns(dweight + at.from, dbias ? dbias + at.from : NULL, dy.data, x, mean, rstd, rows, at.from, at.n,
                                              columns, bf16);););
}
