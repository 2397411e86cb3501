// Steps of optimizers, and the norm of gradients.
#include "common.cuh"

// The blocks of a grid that adds up squares: their number decides in which order the terms meet.
#define BLOCKS 1024

__device__ double partial[BLOCKS];
__device__ unsigned arrived;

// add_squares adds what the threads of a grid have to *total, in a fixed order: the block that arrives last does.
DEVICE void add_squares(double *total, double squares) {
	__shared__ bool last;
	squares = block_sum(squares);
	if (threadIdx.x == 0) {
		partial[blockIdx.x] = squares;
		__threadfence();
		last = atomicAdd(&arrived, 1) == gridDim.x - 1;
	}
	__syncthreads();
	if (!last) return;
	double sum = 0;
	for (int i = threadIdx.x; i < gridDim.x; i += blockDim.x) sum += __ldcg(&partial[i]);
	sum = block_sum(sum);
	if (threadIdx.x == 0) {
		*total += sum;
		arrived = 0;
	}
}

KERNEL squared_norm(double *sum, const float *x, long n) {
	double squares = 0;
	for (EACH(i, n)) squares += (double)x[i] * x[i];
	add_squares(sum, squares);
}

// flush is device.Flush.
DEVICE float flush(float x) { return x > -1e-30f && x < 1e-30f ? 0 : x; }

// Step is what every step has beside its update: the gradient, and operands that may be absent.
struct Step {
	const float *g;
	float *delta;
	bf16 *copy16;
	double *sum;
	double squares;

	__device__ void after(long i, float before, float now) {
		if (delta) delta[i] += now - before;
		if (copy16) copy16[i] = narrow(now);
		if (sum) squares += (double)g[i] * g[i];
	}

	__device__ void end() {
		if (sum) add_squares(sum, squares);
	}
};

KERNEL adam_step(float *p, float *m, float *v, const float *g, float *delta, bf16 *copy16, double *sum, float beta1, float beta2,
                 float epsilon, float grad_scale, float coupled, float keep, float rate, float root, long n) {
	Step step = {g, delta, copy16, sum, 0};
	for (EACH(i, n)) {
		float before = p[i], grad = grad_scale * g[i] + coupled * before;
		m[i] = flush(beta1 * m[i] + (1 - beta1) * grad);
		v[i] = flush(beta2 * v[i] + (1 - beta2) * (grad * grad));
		p[i] = keep * before - rate * (m[i] / (sqrtf(v[i]) / root + epsilon));
		step.after(i, before, p[i]);
	}
	step.end();
}

KERNEL sgd_step(float *p, float *m, const float *g, float *delta, bf16 *copy16, double *sum, float learning_rate, float momentum,
                float weight_decay, float grad_scale, int nesterov, int first, long n) {
	Step step = {g, delta, copy16, sum, 0};
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

KERNEL asgd_step(float *p, float *s, const float *g, float *delta, double *sum, float learning_rate, float weight_decay, float grad_scale,
                 float share, long n) {
	Step step = {g, delta, 0, sum, 0};
	for (EACH(i, n)) {
		float before = p[i], grad = grad_scale * g[i] + weight_decay * (before + s[i]);
		float ahead = s[i] - learning_rate * grad, move = share * ahead;
		p[i] = before + move;
		s[i] = flush(ahead - move);
		step.after(i, before, p[i]);
	}
	step.end();
}
