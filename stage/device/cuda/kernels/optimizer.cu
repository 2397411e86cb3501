// Steps of optimizers, and the norm of gradients.
#include "pack.cuh"

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
	for (EACH_PACK(4, i, n)) {
		Pack<4> of = load<4>(x, i, n);
		UNROLL for (int c = 0; c < 4; c++) squares += (double)of.x[c] * of.x[c];
	}
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

	// after is what follows the update of a pack of parameters.
	__device__ void after(long i, long n, const Pack<4> &gradient, const Pack<4> &before, const Pack<4> &now) {
		if (delta) store(delta, combine<4>([](float d, float before, float now) { return d + (now - before); }, load<4>(delta, i, n), before, now), i, n);
		if (copy16) store(copy16, now, i, n);
		UNROLL for (int c = 0; sum && c < 4; c++) squares += (double)gradient.x[c] * gradient.x[c];
	}

	__device__ void end() {
		if (sum) add_squares(sum, meeting, squares);
	}
};

KERNEL adam_step(float *p, float *m, float *v, const float *g, float *delta, bf16 *copy16, double *sum, Squares *meeting,
                 float beta1, float beta2, float epsilon, float coupled, float grad_scale, float keep, float rate, float root, const long *now, long n) {
	latest(now, grad_scale, keep, rate, root);
	Step step = {g, delta, copy16, sum, meeting, 0};
	for (EACH_PACK(4, i, n)) {
		Pack<4> before = load<4>(p, i, n), gradient = load<4>(g, i, n), first = load<4>(m, i, n), second = load<4>(v, i, n), after;
		UNROLL for (int c = 0; c < 4; c++) {
			float grad = grad_scale * gradient.x[c] + coupled * before.x[c];
			first.x[c] = flush(beta1 * first.x[c] + (1 - beta1) * grad);
			second.x[c] = flush(beta2 * second.x[c] + (1 - beta2) * (grad * grad));
			after.x[c] = keep * before.x[c] - rate * (first.x[c] / (sqrtf(second.x[c]) / root + epsilon));
		}
		store(m, first, i, n);
		store(v, second, i, n);
		store(p, after, i, n);
		step.after(i, n, gradient, before, after);
	}
	step.end();
}

KERNEL sgd_step(float *p, float *m, const float *g, float *delta, bf16 *copy16, double *sum, Squares *meeting, float momentum,
                float weight_decay, int nesterov, float learning_rate, float grad_scale, int first, const long *now, long n) {
	latest(now, learning_rate, grad_scale, first);
	Step step = {g, delta, copy16, sum, meeting, 0};
	for (EACH_PACK(4, i, n)) {
		Pack<4> before = load<4>(p, i, n), gradient = load<4>(g, i, n), update;
		update = combine<4>([=](float g, float p) { return grad_scale * g + weight_decay * p; }, gradient, before);
		if (m) {
			Pack<4> grad = update, moment = grad;
			if (!first) moment = combine<4>([=](float m, float grad) { return momentum * m + grad; }, load<4>(m, i, n), grad);
			update = moment = combine<4>([](float m) { return flush(m); }, moment);
			store(m, moment, i, n);
			if (nesterov) update = combine<4>([=](float grad, float m) { return grad + momentum * m; }, grad, moment);
		}
		Pack<4> after = combine<4>([=](float p, float update) { return p - learning_rate * update; }, before, update);
		store(p, after, i, n);
		step.after(i, n, gradient, before, after);
	}
	step.end();
}

KERNEL asgd_step(float *p, float *s, const float *g, float *delta, double *sum, Squares *meeting, float weight_decay,
                 float learning_rate, float grad_scale, float share, const long *now, long n) {
	latest(now, learning_rate, grad_scale, share);
	Step step = {g, delta, 0, sum, meeting, 0};
	for (EACH_PACK(4, i, n)) {
		Pack<4> before = load<4>(p, i, n), gradient = load<4>(g, i, n), ahead = load<4>(s, i, n), after;
		UNROLL for (int c = 0; c < 4; c++) {
			float grad = grad_scale * gradient.x[c] + weight_decay * (before.x[c] + ahead.x[c]), there = ahead.x[c] - learning_rate * grad;
			float move = share * there;
			after.x[c] = before.x[c] + move;
			ahead.x[c] = flush(there - move);
		}
		store(s, ahead, i, n);
		store(p, after, i, n);
		step.after(i, n, gradient, before, after);
	}
	step.end();
}
