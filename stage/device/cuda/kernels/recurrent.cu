// Recurrent networks.
#include "common.cuh"

DEVICE float logistic(float x) { return 1 / (1 + expf(-x)); }

// Cell is the step of one cell of one sample: what device.LSTM and device.LSTMBackward compute beside products. Gates are those of the four kinds.
struct Cell {
	float in, forget, candidate, open;

	// activate computes the gates from their sums, and returns the state of the cell.
	__device__ float activate(float before) {
		in = logistic(in);
		forget = logistic(forget);
		candidate = tanhf(candidate);
		open = logistic(open);
		return in * candidate + forget * before;
	}

	// differentiate turns the gates into the gradients of their sums, and returns that of the state before.
	__device__ float differentiate(float dout, float dcell, float cell, float before) {
		float squashed = tanhf(cell), d = dcell + dout * open * (1 - squashed * squashed), back = d * forget;
		open = dout * squashed * open * (1 - open);
		forget = d * before * forget * (1 - forget);
		float slope = d * candidate * in * (1 - in);
		candidate = d * in * (1 - candidate * candidate);
		in = slope;
		return back;
	}
};

// The gates of a cell lie h elements apart.
DEVICE Cell load_cell(const float *gates, long h) { return {gates[0], gates[h], gates[2 * h], gates[3 * h]}; }

DEVICE void store_cell(float *gates, long h, const Cell &c) {
	gates[0] = c.in;
	gates[h] = c.forget;
	gates[2 * h] = c.candidate;
	gates[3 * h] = c.open;
}

// Step is a position of all samples: where it lies, and those before and after it in the order of the direction; -1: there is none.
#define STEP long t, long h, long at, long ago, long next, long out_stride, long n

// lstm_step is device.LSTM at one position, after the product. A thread has a cell of a sample.
KERNEL lstm_step(float *out, float *gates, float *cells, void *previous, int brain, const float *before, const int *mask, STEP) {
	Out kept(previous, brain);
	for (EACH(i, n)) {
		long b = i / h, c = i % h, row = b * t + at;
		float *gate = gates + row * 4 * h + c, cell = 0, v = 0;
		Cell now = {0, 0, 0, 0};
		if (!mask || mask[row]) {
			now = load_cell(gate, h);
			cell = now.activate(ago >= 0 ? cells[(b * t + ago) * h + c] : before ? before[i] : 0);
			v = now.open * tanhf(cell);
		}
		store_cell(gate, h, now);
		cells[row * h + c] = cell;
		out[row * out_stride + c] = v;
		if (ago < 0) kept.set(row * h + c, 0);
		if (next >= 0) kept.set((b * t + next) * h + c, v);
	}
}

// lstm_step_backward is device.LSTMBackward at one position, before the product, whose factors it rounds where they are BF16.
KERNEL lstm_step_backward(float *dgates, bf16 *factors, float *carry, const float *dout, const float *gates, const float *cells, const int *mask,
                          STEP) {
	for (EACH(i, n)) {
		long b = i / h, c = i % h, row = b * t + at;
		Cell now = {0, 0, 0, 0};
		float back = 0;
		if (!mask || mask[row]) {
			float dh = next >= 0 ? carry[i] : 0, dcell = next >= 0 ? carry[n + i] : 0;
			now = load_cell(gates + row * 4 * h + c, h);
			back = now.differentiate(dout[row * out_stride + c] + dh, dcell, cells[row * h + c], ago >= 0 ? cells[(b * t + ago) * h + c] : 0);
		}
		store_cell(dgates + row * 4 * h + c, h, now);
		carry[n + i] = back;
		if (!factors) continue;
		bf16 *factor = factors + b * 4 * h + c;
		factor[0] = narrow(now.in);
		factor[h] = narrow(now.forget);
		factor[2 * h] = narrow(now.candidate);
		factor[3 * h] = narrow(now.open);
	}
}

// lstm is device.LSTM without cuBLAS: a block has a sample, and goes through its positions.
KERNEL lstm(float *out, float *gates, float *cells, void *previous, const void *weight, int brain, const float *before, const int *mask, long t,
            long h, int reverse, long out_stride) {
	long b = blockIdx.x;
	In weights(weight, brain), last(previous, brain);
	Out kept(previous, brain);
	for (long n = 0; n < t; n++) {
		long row = b * t + (reverse ? t - 1 - n : n), ago = reverse ? row + 1 : row - 1;
		float *gate = gates + row * 4 * h;
		bool masked = mask && mask[row] == 0;
		for (long c = threadIdx.x; c < h; c += blockDim.x) kept.set(row * h + c, n > 0 ? out[ago * out_stride + c] : 0);
		__syncthreads();
		for (long j = threadIdx.x; j < 4 * h; j += blockDim.x) {
			float sum = 0;
			for (long c = 0; c < h; c++) sum = fmaf(last[row * h + c], weights[j * h + c], sum);
			sum += gate[j];
			gate[j] = masked ? 0 : j / h == 2 ? tanhf(sum) : logistic(sum);
		}
		__syncthreads();
		for (long c = threadIdx.x; c < h; c += blockDim.x) {
			float cell = gate[c] * gate[2 * h + c];
			if (n > 0) cell += gate[h + c] * cells[ago * h + c];
			else if (before) cell += gate[h + c] * before[b * h + c];
			cells[row * h + c] = masked ? 0 : cell;
			out[row * out_stride + c] = masked ? 0 : gate[3 * h + c] * tanhf(cell);
		}
		__syncthreads();
	}
}

// lstm_backward is device.LSTMBackward without cuBLAS: backpropagation through time (Werbos 1990).
KERNEL lstm_backward(float *dgates, float *carry, const float *dout, const float *gates, const float *cells, const void *weight, int brain,
                     const int *mask, long samples, long t, long h, int reverse, long out_stride) {
	long b = blockIdx.x;
	In weights(weight, brain);
	float *dh = carry + b * h, *dc = carry + (samples + b) * h;
	for (long c = threadIdx.x; c < h; c += blockDim.x) dh[c] = dc[c] = 0;
	__syncthreads();
	for (long n = t - 1; n >= 0; n--) {
		long row = b * t + (reverse ? t - 1 - n : n), ago = reverse ? row + 1 : row - 1;
		const float *gate = gates + row * 4 * h;
		float *dg = dgates + row * 4 * h;
		bool masked = mask && mask[row] == 0;
		for (long c = threadIdx.x; c < h; c += blockDim.x) {
			float i = gate[c], f = gate[h + c], g = gate[2 * h + c], o = gate[3 * h + c], squashed = tanhf(cells[row * h + c]);
			float d = dout[row * out_stride + c] + dh[c], cell = dc[c] + d * o * (1 - squashed * squashed);
			dg[c] = masked ? 0 : cell * g * i * (1 - i);
			dg[h + c] = masked || n == 0 ? 0 : cell * cells[ago * h + c] * f * (1 - f);
			dg[2 * h + c] = masked ? 0 : cell * i * (1 - g * g);
			dg[3 * h + c] = masked ? 0 : d * squashed * o * (1 - o);
			dc[c] = masked ? 0 : cell * f;
		}
		__syncthreads();
		for (long c = threadIdx.x; c < h; c += blockDim.x) {
			float sum = 0;
			for (long j = 0; j < 4 * h; j++) sum = fmaf(brain ? widen(narrow(dg[j])) : dg[j], weights[j * h + c], sum);
			dh[c] = sum;
		}
		__syncthreads();
	}
}

// additive_attention is device.AdditiveAttention of one query a block, and one key a warp.
KERNEL additive_attention(float *probabilities, const float *q, const float *k, const float *v, const int *mask, long t, long units) {
	long query = blockIdx.x, from = query / t * t;
	float *p = probabilities + query * t, largest = -INFINITY, sum = 0;
	for (long key = threadIdx.x / 32; key < t; key += blockDim.x / 32) {
		float score = 0;
		for (long n = threadIdx.x % 32; n < units; n += 32) score = fmaf(v[n], tanhf(q[query * units + n] + k[(from + key) * units + n]), score);
		score = warp_sum(score);
		if (threadIdx.x % 32 == 0) p[key] = mask && mask[from + key] == 0 ? -INFINITY : score;
	}
	__syncthreads();
	for (long key = threadIdx.x; key < t; key += blockDim.x) largest = Max()(p[key], largest);
	largest = block_max(largest);
	for (long key = threadIdx.x; key < t; key += blockDim.x) {
		p[key] = largest == -INFINITY ? 0 : expf(p[key] - largest);
		sum += p[key];
	}
	sum = block_sum(sum);
	for (long key = threadIdx.x; key < t; key += blockDim.x) p[key] = sum == 0 ? 0 : p[key] / sum;
}

// additive_scores turns the gradients of probabilities into those of scores: ds = p (dp - sum p dp), a query a block.
KERNEL additive_scores(float *dprobabilities, const float *probabilities, long t) {
	const float *p = probabilities + blockIdx.x * t;
	float *dp = dprobabilities + blockIdx.x * t, sum = 0;
	for (long key = threadIdx.x; key < t; key += blockDim.x) sum = fmaf(p[key], dp[key], sum);
	sum = block_sum(sum);
	for (long key = threadIdx.x; key < t; key += blockDim.x) dp[key] = p[key] * (dp[key] - sum);
}

// additive_backward sets dq, or dk where the roles of queries and keys are exchanged: a thread has a unit of a position. parts, unless absent,
// receives what the position adds to dv.
KERNEL additive_backward(float *dx, float *parts, const float *ds, const float *x, const float *others, const float *v, int keys, long t, long units,
                         long n) {
	for (EACH(i, n)) {
		long row = i / units, from = row / t * t, unit = i % units;
		float sum = 0, part = 0;
		for (long other = 0; other < t; other++) {
			float squashed = tanhf(x[i] + others[(from + other) * units + unit]);
			float slope = ds[keys ? (from + other) * t + row - from : row * t + other];
			sum += slope * v[unit] * (1 - squashed * squashed);
			part = fmaf(slope, squashed, part);
		}
		dx[i] = sum;
		if (parts) parts[i] = part;
	}
}

// weight_norm is device.WeightNorm, in one block.
KERNEL weight_norm(float *v, const float *direction, const float *length, long n) {
	double squares = 0;
	for (long i = threadIdx.x; i < n; i += blockDim.x) squares += (double)direction[i] * direction[i];
	float scale = (float)(*length / sqrt(block_sum(squares)));
	for (long i = threadIdx.x; i < n; i += blockDim.x) v[i] = scale * direction[i];
}

KERNEL weight_norm_backward(float *ddirection, float *dlength, const float *dv, const float *direction, const float *length, long n) {
	double squares = 0, along = 0;
	for (long i = threadIdx.x; i < n; i += blockDim.x) {
		squares += (double)direction[i] * direction[i];
		along += (double)dv[i] * direction[i];
	}
	double norm = sqrt(block_sum(squares));
	along = block_sum(along) / norm;
	float scale = (float)(*length / norm), back = (float)(along / norm);
	for (long i = threadIdx.x; i < n; i += blockDim.x) ddirection[i] += scale * (dv[i] - back * direction[i]);
	if (threadIdx.x == 0) *dlength += (float)along;
}
