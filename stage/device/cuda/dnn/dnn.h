// The functions of cuDNN that convolutions need, found when the library is loaded.
#ifndef AVG_DNN_H
#define AVG_DNN_H

#include <stddef.h>
#include <stdint.h>

// Descriptors, as the library hands them out.
typedef void *descriptor;

struct avg_dnn {
	size_t (*version)(void);
	const char *(*words)(int status);
	int (*create)(void **handle);
	int (*destroy)(void *handle);
	int (*stream)(void *handle, void *stream);
	int (*new_tensor)(descriptor *);
	int (*free_tensor)(descriptor);
	int (*set_tensor)(descriptor, int format, int type, int n, int c, int h, int w);
	int (*new_filter)(descriptor *);
	int (*free_filter)(descriptor);
	int (*set_filter)(descriptor, int type, int format, int k, int c, int h, int w);
	int (*new_convolution)(descriptor *);
	int (*free_convolution)(descriptor);
	int (*set_convolution)(descriptor, int pad_h, int pad_w, int stride_h, int stride_w, int dilation_h, int dilation_w, int mode, int compute);
	int (*set_math)(descriptor, int math);
	int (*forward_workspace)(void *handle, descriptor x, descriptor w, descriptor convolution, descriptor y, int algorithm, size_t *bytes);
	int (*data_workspace)(void *handle, descriptor w, descriptor dy, descriptor convolution, descriptor dx, int algorithm, size_t *bytes);
	int (*filter_workspace)(void *handle, descriptor x, descriptor dy, descriptor convolution, descriptor dw, int algorithm, size_t *bytes);
	int (*forward)(void *handle, const void *alpha, descriptor x_of, const void *x, descriptor w_of, const void *w, descriptor convolution,
	               int algorithm, void *workspace, size_t bytes, const void *beta, descriptor y_of, void *y);
	int (*data)(void *handle, const void *alpha, descriptor w_of, const void *w, descriptor dy_of, const void *dy, descriptor convolution,
	            int algorithm, void *workspace, size_t bytes, const void *beta, descriptor dx_of, void *dx);
	int (*filter)(void *handle, const void *alpha, descriptor x_of, const void *x, descriptor dy_of, const void *dy, descriptor convolution,
	              int algorithm, void *workspace, size_t bytes, const void *beta, descriptor dw_of, void *dw);
};

// struct avg_shape is a convolution of images with their channels last, with weights (out,kernel,kernel,in).
struct avg_shape {
	int b, height, width, in, out, kernel, stride, padding, oh, ow;
	int form; // 0: y, 1: the gradient of x, 2: that of the weights
	int math;
};

// struct avg_plan is a convolution that the library has taken.
struct avg_plan {
	descriptor x, y, weight, convolution;
	int form;
	size_t workspace; // bytes
};

// avg_dnn_find finds the functions in a library. It returns NULL, or the name of one that it lacks.
const char *avg_dnn_find(struct avg_dnn *dnn, void *library);

// These return 0, or a status of the library.
int avg_dnn_create(const struct avg_dnn *dnn, void **handle, void *stream);
int avg_dnn_destroy(const struct avg_dnn *dnn, void *handle);
int avg_dnn_plan(const struct avg_dnn *dnn, void *handle, struct avg_shape shape, struct avg_plan *plan);
int avg_dnn_run(const struct avg_dnn *dnn, void *handle, const struct avg_plan *plan, float beta, uintptr_t x, uintptr_t y, uintptr_t weight,
                uintptr_t workspace);

void avg_dnn_free(const struct avg_dnn *dnn, struct avg_plan *plan);
size_t avg_dnn_version(const struct avg_dnn *dnn);
const char *avg_dnn_words(const struct avg_dnn *dnn, int status);

#endif
