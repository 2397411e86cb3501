// Steps of optimizers, and the norm of gradients.
#include "common.cuh"

// The blocks of a grid that adds up squares: their number decides in which order the terms meet.
#define BLOCKS 1024

// Squares is where the blocks of a grid meet. Each device has its own, zeroed, since kernels of two may run at once.
struct Squares {
	double partial[BLOCKS];
	unsigned arrived;
};

// add_squares adds what the threads of a grid have to *total, in a fixed order: the block that arrives last does.
DEVICE void add_squares(double *total, Squares *meeting, double squares) {
	__shared__ bool last;
	squares = block_sum(squares);
	if (threadIdx.x == 0) {
		meeting->partial[blockIdx.x] = squares;
		__threadfence();
		last = atomicAdd(&meeting->arrived, 1) == gridDim.x - 1;
	}
	__syncthreads();
	if (!last) return;
	double sum = 0;
	for (int i = threadIdx.x; i < gridDim.x; i += blockDim.x) sum += __ldcg(&meeting->partial[i]);
	sum = block_sum(sum);
	if (threadIdx.x == 0) {
		*total += sum;
		meeting->arrived = 0;
	}
}

KERNEL squared_norm(double *sum, Squares *meeting, const float *x, long n) {
	double squares = 0;
	for (EACH(i, n)) squares += (double)x[i] * x[i];
	add_squares(sum, meeting, squares);
}

// flush is device.Flush.
DEVICE float flush(float x) { return x > -1e-30f && x < 1e-30f ? 0 : x; }

// Step is what every step has beside its update: the gradient, and operands that may be absent.
struct Step {
	const float *g;
	float *delta;
	bf16 *copy16;
	double *sum;
	Squares *meeting;
	double squares;

	__device__ void after(long i, float before, float now) {
		if (delta) delta[i] += now - before;
		if (copy16) copy16[i] = narrow(now);
		if (sum) squares += (double)g[i] * g[i];
	}

	__device__ void end() {
		if (sum) add_squares(sum, meeting, squares);
	}
};

KERNEL adam_step(float *p, float *m, float *v, const float *g, float *delta, bf16 *copy16, double *sum, Squares *meeting,
                 float beta1, float beta2, float epsilon, float coupled, float grad_scale, float keep, float rate, float root, const long *now, long n) {
	latest(now, grad_scale, keep, rate, root);
	Step step = {g, delta, copy16, sum, meeting, 0};
	for (EACH(i, n)) {
		float before = p[i], grad = grad_scale * g[i] + coupled * before;
		m[i] = flush(beta1 * m[i] + (1 - beta1) * grad);
		v[i] = flush(beta2 * v[i] + (1 - beta2) * (grad * grad));
		p[i] = keep * before - rate * (m[i] / (sqrtf(v[i]) / root + epsilon));
		step.after(i, before, p[i]);
	}
	step.end();
}

KERNEL sgd_step(float *p, float *m, const float *g, float *delta, bf16 *copy16, double *sum, Squares *meeting, float momentum,
                float weight_decay, int nesterov, float learning_rate, float grad_scale, int first, const long *now, long n) {
	latest(now, learning_rate, grad_scale, first);
	Step step = {g, delta, copy16, sum, meeting, 0};
	for (EACH(i, n)) {
		float before = p[i], update = grad_scale * g[i] + weight_decay * before;
		if (m) {
			float grad = update;
			m[i] = update = flush(first ? grad : momentum * m[i] + grad);
			if (nesterov) update = grad + momentum * update;
		}
		p[i] = before - learning_rate * update;
		step.after(i, before, p[i]);
	}
	step.end();
}

KERNEL asgd_step(float *p, float *s, const float *g, float *delta, double *sum, Squares *meeting, float weight_decay,
                 float learning_rate, float grad_scale, float share, const long *now, long n) {
	latest(now, learning_rate, grad_scale, share);
	Step step = {g, delta, 0, sum, meeting, 0};
	for (EACH(i, n)) {
		float before = p[i], grad = grad_scale * g[i] + weight_decay * (before + s[i]);
		float ahead = s[i] - learning_rate * grad, move = share * ahead;
		p[i] = before + move;
		s[i] = flush(ahead - move);
		step.after(i, before, p[i]);
	}
	step.end();
}
