// cuBLAS and cublasLt: the library stands for them too.
#include <string.h>

#include "driver.h"

struct Blas {
	CUstream stream;
	bool works; // in memory of the caller's
};

EXPORT int cublasCreate_v2(Blas **to) {
	*to = new Blas();
	return 0;
}

EXPORT int cublasDestroy_v2(Blas *blas) {
	delete blas;
	return 0;
}

EXPORT int cublasGetVersion_v2(Blas *, int *version) {
	*version = 120401;
	return 0;
}

EXPORT int cublasSetStream_v2(Blas *blas, CUstream stream) {
	*blas = {stream, false}; // as the library has it
	return 0;
}

// cublasSetWorkspace takes memory that the caller owns; a handle without it allocates.
EXPORT int cublasSetWorkspace_v2(Blas *blas, void *memory, size_t bytes) {
	blas->works = lies_on_device(memory, bytes);
	return blas->works ? 0 : 7;
}

namespace {

const int ok = 0, invalid = 7, failed = 14, unsupported = 15;
const int type_f32 = 0, type_bf16 = 14, compute_f32 = 68, compute_tf32 = 77;

float from_bits(uint32_t bits) {
	float v;
	memcpy(&v, &bits, sizeof v);
	return v;
}

uint32_t bits_of(float v) {
	uint32_t bits;
	memcpy(&bits, &v, sizeof v);
	return bits;
}

// Matrix is an operand by columns, of float or of bfloat16.
struct Matrix {
	char *data;
	int type, columns_apart;

	float get(size_t row, size_t column) const {
		size_t i = column * columns_apart + row;
		return type == type_f32 ? ((float *)data)[i] : from_bits((uint32_t)((uint16_t *)data)[i] << 16);
	}

	void set(size_t row, size_t column, float v) const {
		size_t i = column * columns_apart + row;
		uint32_t bits = bits_of(v);
		if (type == type_f32) ((float *)data)[i] = v;
		else ((uint16_t *)data)[i] = (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
	}

	// lies reports whether rows by columns of it lie in memory of the device.
	bool lies(int rows, int columns) const {
		size_t elements = (size_t)(columns - 1) * columns_apart + rows;
		return columns_apart >= rows && lies_on_device(data, elements * (type == type_f32 ? 4 : 2));
	}
};

// Product is C = op(A) op(B) + beta C, with a bias for each row of C, or none.
struct Product {
	int trans_a, trans_b, m, n, k, compute;
	Matrix a, b, c;
	float beta;
	Matrix bias;
	bool backwards; // in which order products are added

	int check() const {
		if (a.type != b.type || (c.type != type_f32 && c.type != a.type)) return unsupported;
		if (compute != compute_f32 && (compute != compute_tf32 || a.type != type_f32)) return unsupported;
		bool there = (trans_a ? a.lies(k, m) : a.lies(m, k)) && (trans_b ? b.lies(n, k) : b.lies(k, n)) && c.lies(m, n);
		return there && (bias.data == nullptr || bias.lies(m, 1)) ? ok : invalid;
	}

	// factor is an operand of a product as matrix units take it: TF32 has 10 bits behind the point.
	float factor(float v) const { return compute == compute_tf32 ? from_bits((bits_of(v) + 0x1000) & ~0x1fffu) : v; }

	CUresult run() const {
		for (int j = 0; j < n; j++) {
			for (int i = 0; i < m; i++) {
				float sum = 0;
				for (int step = 0; step < k; step++) {
					int d = backwards ? k - 1 - step : step;
					sum += factor(trans_a ? a.get(d, i) : a.get(i, d)) * factor(trans_b ? b.get(j, d) : b.get(d, j));
				}
				if (bias.data != nullptr) sum += bias.get(i, 0);
				c.set(i, j, sum + (beta != 0 ? beta * c.get(i, j) : 0));
			}
		}
		return CUDA_SUCCESS;
	}
};

int hand_over_product(const char *name, CUstream stream, const Product &p) {
	int status = p.check();
	if (status != ok) return status;
	return hand_over(name, stream, [p] { return p.run(); }) == CUDA_SUCCESS ? ok : failed;
}

} // namespace

EXPORT int cublasGemmEx(Blas *blas, int trans_a, int trans_b, int m, int n, int k, const float *alpha, char *a, int type_a, int lda, char *b,
                        int type_b, int ldb, const float *beta, char *c, int type_c, int ldc, int compute, int) {
	if (*alpha != 1) return unsupported;
	return hand_over_product(__func__, blas->stream,
	                         {trans_a, trans_b, m, n, k, compute, {a, type_a, lda}, {b, type_b, ldb}, {c, type_c, ldc}, *beta, {}, false});
}

// cublasLt. An algorithm is that of the shape that was asked for.

struct Operation {
	int compute, trans_a, trans_b;
	unsigned epilogue;
	char *bias;
};

struct Layout {
	int type;
	uint64_t rows, columns;
	int64_t columns_apart;
};

struct Preference {
	uint64_t workspace;
	uint32_t alignments[4];
};

struct Choice {
	uint64_t algorithm[8];
	size_t workspace;
	int state;
	float waves;
	int reserved[4];
};

static bool refuses;

EXPORT void fake_refuse_epilogues(int whether) { refuses = whether; }

EXPORT int cublasLtCreate(char **handle) {
	*handle = new char();
	return ok;
}

EXPORT int cublasLtDestroy(char *handle) {
	delete handle;
	return ok;
}

EXPORT int cublasLtMatmulDescCreate(Operation **to, int compute, int scale) {
	*to = new Operation{compute, 0, 0, 1, nullptr};
	return scale == type_f32 ? ok : unsupported;
}

EXPORT int cublasLtMatmulDescDestroy(Operation *o) {
	delete o;
	return ok;
}

EXPORT int cublasLtMatmulDescSetAttribute(Operation *o, int attribute, const void *value, size_t bytes) {
	const std::vector<std::pair<int, std::pair<void *, size_t>>> known = {
		{3, {&o->trans_a, 4}}, {4, {&o->trans_b, 4}}, {7, {&o->epilogue, 4}}, {8, {&o->bias, 8}}};
	for (const auto &[number, place] : known) {
		if (number != attribute || place.second != bytes) continue;
		memcpy(place.first, value, bytes);
		return ok;
	}
	return invalid;
}

EXPORT int cublasLtMatrixLayoutCreate(Layout **to, int type, uint64_t rows, uint64_t columns, int64_t columns_apart) {
	*to = new Layout{type, rows, columns, columns_apart};
	return ok;
}

EXPORT int cublasLtMatrixLayoutDestroy(Layout *layout) {
	delete layout;
	return ok;
}

EXPORT int cublasLtMatmulPreferenceCreate(Preference **to) {
	*to = new Preference{0, {256, 256, 256, 256}};
	return ok;
}

EXPORT int cublasLtMatmulPreferenceDestroy(Preference *p) {
	delete p;
	return ok;
}

EXPORT int cublasLtMatmulPreferenceSetAttribute(Preference *p, int attribute, const void *value, size_t bytes) {
	if (attribute == 1 && bytes == 8) memcpy(&p->workspace, value, bytes);
	else if (attribute >= 5 && attribute < 9 && bytes == 4) memcpy(&p->alignments[attribute - 5], value, bytes);
	else return invalid;
	return ok;
}

// alignment_of is how an address is aligned, as far as an algorithm cares, which adds backwards where that is more than 16 bytes.
static uint64_t alignment_of(const char *at) { return std::min((uintptr_t)at & -(uintptr_t)at, (uintptr_t)256); }

// algorithm_of is what the heuristics choose: what a later product is compared with.
static std::vector<uint64_t> algorithm_of(const Operation *o, const Layout *a, const Layout *b, const Layout *c) {
	return {(uint64_t)o->compute << 32 | o->epilogue << 2 | o->trans_a << 1 | o->trans_b, a->rows, a->columns, b->rows, b->columns, c->rows, c->columns};
}

EXPORT int cublasLtMatmulAlgoGetHeuristic(void *, Operation *o, Layout *a, Layout *b, Layout *c, Layout *, Preference *p, int most, Choice *choices,
                                          int *found) {
	*found = 0;
	if (most < 1 || o->epilogue != 4) return invalid;
	if (refuses) return unsupported;
	*choices = {};
	std::vector<uint64_t> algorithm = algorithm_of(o, a, b, c);
	std::copy(algorithm.begin(), algorithm.end(), choices->algorithm);
	choices->algorithm[7] = p->alignments[0] | alignment_of(o->bias) << 32;
	choices->workspace = p->workspace / 2;
	*found = 1;
	return ok;
}

EXPORT int cublasLtMatmul(void *, Operation *o, const float *alpha, char *a, Layout *la, char *b, Layout *lb, const float *beta, const char *c,
                          Layout *lc, char *d, Layout *ld, const uint64_t *algorithm, void *workspace, size_t bytes, CUstream stream) {
	std::vector<uint64_t> expected = algorithm_of(o, la, lb, lc);
	if (!std::equal(expected.begin(), expected.end(), algorithm) || !lies_on_device(workspace, bytes) || lc != ld || c != d) return invalid;
	if (*alpha != 1 || *beta != 0) return unsupported;
	uint64_t operands = (uint32_t)algorithm[7], bias = algorithm[7] >> 32;
	for (const char *at : {(const char *)a, (const char *)b, c}) {
		if ((uintptr_t)at % operands != 0) return invalid;
	}
	if (alignment_of(o->bias) < bias) return invalid;
	int k = o->trans_a ? la->rows : la->columns;
	return hand_over_product(__func__, stream,
	                         {o->trans_a, o->trans_b, (int)lc->rows, (int)lc->columns, k, o->compute, {a, la->type, (int)la->columns_apart},
	                          {b, lb->type, (int)lb->columns_apart}, {d, ld->type, (int)ld->columns_apart}, 0, {o->bias, ld->type, (int)ld->rows}, bias > 16});
}
