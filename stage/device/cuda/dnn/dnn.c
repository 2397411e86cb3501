//go:build cuda && cgo && linux && amd64

#include "dnn.h"

#include <dlfcn.h>

const char *avg_dnn_find(struct avg_dnn *dnn, void *library) {
	const struct {
		const char *name;
		void *to;
	} functions[] = {
		{"cudnnGetVersion", &dnn->version},
		{"cudnnGetErrorString", &dnn->words},
		{"cudnnCreate", &dnn->create},
		{"cudnnDestroy", &dnn->destroy},
		{"cudnnSetStream", &dnn->stream},
		{"cudnnCreateTensorDescriptor", &dnn->new_tensor},
		{"cudnnDestroyTensorDescriptor", &dnn->free_tensor},
		{"cudnnSetTensor4dDescriptor", &dnn->set_tensor},
		{"cudnnCreateFilterDescriptor", &dnn->new_filter},
		{"cudnnDestroyFilterDescriptor", &dnn->free_filter},
		{"cudnnSetFilter4dDescriptor", &dnn->set_filter},
		{"cudnnCreateConvolutionDescriptor", &dnn->new_convolution},
		{"cudnnDestroyConvolutionDescriptor", &dnn->free_convolution},
		{"cudnnSetConvolution2dDescriptor", &dnn->set_convolution},
		{"cudnnSetConvolutionMathType", &dnn->set_math},
		{"cudnnGetConvolutionForwardWorkspaceSize", &dnn->forward_workspace},
		{"cudnnGetConvolutionBackwardDataWorkspaceSize", &dnn->data_workspace},
		{"cudnnGetConvolutionBackwardFilterWorkspaceSize", &dnn->filter_workspace},
		{"cudnnConvolutionForward", &dnn->forward},
		{"cudnnConvolutionBackwardData", &dnn->data},
		{"cudnnConvolutionBackwardFilter", &dnn->filter},
	};
	for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
		void *found = dlsym(library, functions[i].name);
		if (found == NULL) return functions[i].name;
		*(void **)functions[i].to = found;
	}
	return NULL;
}

int avg_dnn_create(const struct avg_dnn *dnn, void **handle, void *stream) {
	int status = dnn->create(handle);
	return status == 0 ? dnn->stream(*handle, stream) : status;
}

int avg_dnn_destroy(const struct avg_dnn *dnn, void *handle) { return dnn->destroy(handle); }

size_t avg_dnn_version(const struct avg_dnn *dnn) { return dnn->version(); }

const char *avg_dnn_words(const struct avg_dnn *dnn, int status) { return dnn->words(status); }

// Numbers of cuDNN.
enum { channels_last = 1, type_float = 0, cross_correlation = 1, algorithm = 1 };

// In all three forms the algorithm of number 1 sums products in a fixed order. Others use atomic additions, or transform what they multiply,
// which rounds it.
static int workspace(const struct avg_dnn *dnn, void *handle, struct avg_plan *p) {
	switch (p->form) {
	case 0:
		return dnn->forward_workspace(handle, p->x, p->weight, p->convolution, p->y, algorithm, &p->workspace);
	case 1:
		return dnn->data_workspace(handle, p->weight, p->y, p->convolution, p->x, algorithm, &p->workspace);
	default:
		return dnn->filter_workspace(handle, p->x, p->y, p->convolution, p->weight, algorithm, &p->workspace);
	}
}

#define TRY(call)                \
	do {                         \
		int status = call;       \
		if (status) return status; \
	} while (0)

static int describe(const struct avg_dnn *dnn, struct avg_shape s, struct avg_plan *p) {
	TRY(dnn->new_tensor(&p->x));
	TRY(dnn->new_tensor(&p->y));
	TRY(dnn->new_filter(&p->weight));
	TRY(dnn->new_convolution(&p->convolution));
	TRY(dnn->set_tensor(p->x, channels_last, type_float, s.b, s.in, s.height, s.width));
	TRY(dnn->set_tensor(p->y, channels_last, type_float, s.b, s.out, s.oh, s.ow));
	TRY(dnn->set_filter(p->weight, type_float, channels_last, s.out, s.in, s.kernel, s.kernel));
	TRY(dnn->set_convolution(p->convolution, s.padding, s.padding, s.stride, s.stride, 1, 1, cross_correlation, type_float));
	return dnn->set_math(p->convolution, s.math);
}

int avg_dnn_plan(const struct avg_dnn *dnn, void *handle, struct avg_shape shape, struct avg_plan *plan) {
	*plan = (struct avg_plan){.form = shape.form};
	int status = describe(dnn, shape, plan);
	if (status == 0) status = workspace(dnn, handle, plan);
	if (status != 0) avg_dnn_free(dnn, plan);
	return status;
}

void avg_dnn_free(const struct avg_dnn *dnn, struct avg_plan *plan) {
	if (plan->x) dnn->free_tensor(plan->x);
	if (plan->y) dnn->free_tensor(plan->y);
	if (plan->weight) dnn->free_filter(plan->weight);
	if (plan->convolution) dnn->free_convolution(plan->convolution);
	*plan = (struct avg_plan){0};
}

int avg_dnn_run(const struct avg_dnn *dnn, void *handle, const struct avg_plan *p, float beta, uintptr_t x, uintptr_t y, uintptr_t weight,
                uintptr_t scratch) {
	const float alpha = 1;
	void *image = (void *)x, *outputs = (void *)y, *filter = (void *)weight, *space = (void *)scratch;
	switch (p->form) {
	case 0:
		return dnn->forward(handle, &alpha, p->x, image, p->weight, filter, p->convolution, algorithm, space, p->workspace, &beta, p->y, outputs);
	case 1:
		return dnn->data(handle, &alpha, p->weight, filter, p->y, outputs, p->convolution, algorithm, space, p->workspace, &beta, p->x, image);
	default:
		return dnn->filter(handle, &alpha, p->x, image, p->y, outputs, p->convolution, algorithm, space, p->workspace, &beta, p->weight, filter);
	}
}
