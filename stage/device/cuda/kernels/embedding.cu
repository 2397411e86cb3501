// Rows of tables.
#include "pack.cuh"

// embed is device.Embed of one row a block.
KERNEL embed(float *out, const float *tokens, const float *positions, const int *ids, long t, long width, long table, int add, Fault *fault,
             int operation) {
	long row = blockIdx.x, id = ids[row], at = row % t * width;
	if (!accepted(fault, operation, row, id, 0, table)) return;
	auto sum = [](float v, float w) { return v + w; };
	for (long c = 4 * threadIdx.x; c < width; c += 4 * (long)blockDim.x) {
		Pack<4> v = load<4>(tokens + id * width, c, width);
		if (positions) v = combine<4>(sum, v, load<4>(positions + at, c, width));
		if (add) v = combine<4>(sum, load<4>(out + row * width, c, width), v);
		store(out + row * width, v, c, width);
	}
}

// How many rows embed_backward looks through at once, and how many it loads before it adds them up.
#define SCANNED 2048
#define AHEAD 8

// embed_backward adds rows to the table, each sum in the order of the rows. A block has the ids that are blockIdx.x modulo gridDim.x. It lists
// the rows that have one, and each thread adds up columns of those, ids that follow each other in one sum.
KERNEL embed_backward(float *dtokens, const float *dout, const int *ids, long rows, long width, long table, Fault *fault, int operation) {
	__shared__ unsigned found[SCANNED / 32]; // a bit for each row
	__shared__ int listed[SCANNED];
	for (long from = 0; from < rows; from += SCANNED) {
		int words = rows - from < SCANNED ? (rows - from + 31) / 32 : SCANNED / 32, count = 0;
		for (int i = threadIdx.x; i < words * 32; i += blockDim.x) {
			long row = from + i;
			bool mine = row < rows && accepted(fault, operation, row, ids[row], 0, table) && ids[row] % gridDim.x == blockIdx.x;
			unsigned bits = __ballot_sync(~0u, mine);
			if (i % 32 == 0) found[i / 32] = bits;
		}
		__syncthreads();
		for (int word = 0; word < words; word++) {
			int at = count;
			for (unsigned bits = word % blockDim.x == threadIdx.x ? found[word] : 0; bits != 0; bits &= bits - 1) listed[at++] = word * 32 + __ffs(bits) - 1;
			count += __popc(found[word]);
		}
		__syncthreads();
		for (long column = threadIdx.x; column < width; column += blockDim.x) {
			float sum = 0, next[AHEAD];
			long to = -1;
			for (int i = 0; i < count; i += AHEAD) {
				UNROLL for (int a = 0; a < AHEAD; a++) next[a] = i + a < count ? dout[(from + listed[i + a]) * width + column] : 0;
				UNROLL for (int a = 0; a < AHEAD; a++) {
					if (i + a >= count) break;
					long id = ids[from + listed[i + a]];
					if (id != to) {
						if (to >= 0) dtokens[to * width + column] = sum;
						to = id;
						sum = dtokens[to * width + column];
					}
					sum += next[a];
				}
			}
			if (to >= 0) dtokens[to * width + column] = sum;
		}
	}
}

KERNEL embed_backward_positions(float *dpositions, const float *dout, long samples, long n) {
	for (EACH(i, n)) {
		float sum = dpositions[i];
		for (long b = 0; b < samples; b++) sum += dout[b * n + i];
		dpositions[i] = sum;
	}
}
