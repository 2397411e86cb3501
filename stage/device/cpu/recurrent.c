//go:build onednn && cgo && linux && amd64

#include <stdlib.h>

#include "primitives.h"

int avg_lstm_new(struct avg_device *d, size_t b, size_t t, size_t h, int bf16, struct avg_lstm **lstm) {
    struct avg_lstm *l = *lstm = calloc(1, sizeof *l);
    if (!l) return dnnl_out_of_memory;
    l->b = b, l->t = t, l->h = h, l->bf16 = bf16, l->units = bf16 && d->bf16_units;
    l->state = avg_allocate(b * h * sizeof(float));
    l->gates = avg_allocate(4 * b * h * sizeof(float));
    if (bf16) l->rounded = avg_allocate(4 * b * h * sizeof *l->rounded);
    const int64_t rows = (int64_t)b, cells = (int64_t)h;
    const int flags = AVG_PACK_B | (bf16 ? AVG_BF16_B : 0) | (l->units ? AVG_BF16_A : 0);
    dnnl_status_t status = l->state && l->gates && (!bf16 || l->rounded) ? dnnl_success : dnnl_out_of_memory;
    TRY(avg_product_new(d, rows, 4 * cells, cells, flags | AVG_TRANS_B, &l->forward));
    TRY(avg_product_new(d, rows, cells, 4 * cells, flags, &l->backward));
    if (status != dnnl_success) {
        avg_lstm_free(l);
        *lstm = NULL;
    }
    return status;
}

void avg_lstm_free(struct avg_lstm *l) {
    avg_product_free(l->forward);
    avg_product_free(l->backward);
    if (l->state) avg_free(l->state, l->b * l->h * sizeof(float));
    if (l->gates) avg_free(l->gates, 4 * l->b * l->h * sizeof(float));
    if (l->rounded) avg_free(l->rounded, 4 * l->b * l->h * sizeof *l->rounded);
    free(l);
}
