#include "warp.h"

#include <deque>
#include <map>
#include <vector>

#include "fibers.h"

namespace {

float widen(unsigned v) { return __uint_as_float(v << 16); }

unsigned narrow(float v) {
	unsigned bits = __float_as_uint(v);
	if (v != v) return 0x7fff;
	return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

// half is the lower or the upper element of a register.
float half(unsigned both, int upper) { return widen(upper ? both >> 16 : both & 0xffff); }

struct Product {
	float (*c)[4];
	unsigned a[4], b[2];
};

// multiply takes what the lanes of a warp have apart, multiplies, and gives each its part of c.
void multiply(void *const *lanes) {
	float a[16][16], b[16][8];
	for (int lane = 0; lane < 32; lane++) {
		const Product &part = *(Product *)lanes[lane];
		int g = lane / 4, t = lane % 4;
		for (int i = 0; i < 4; i++) {
			for (int e = 0; e < 2; e++) a[g + i % 2 * 8][2 * t + i / 2 * 8 + e] = half(part.a[i], e);
		}
		for (int i = 0; i < 2; i++) {
			for (int e = 0; e < 2; e++) b[2 * t + i * 8 + e][g] = half(part.b[i], e);
		}
	}
	for (int row = 0; row < 16; row++) {
		float sums[8] = {};
		for (int k = 0; k < 16; k++) {
			for (int column = 0; column < 8; column++) sums[column] += a[row][k] * b[k][column];
		}
		for (int column = 0; column < 8; column++) {
			(*((Product *)lanes[row % 8 * 4 + column / 2])->c)[row / 8 * 2 + column % 2] += sums[column];
		}
	}
}

struct Load {
	const bf16 *row;
	unsigned *x;
	bool transposed;
};

void load(void *const *lanes) {
	for (int lane = 0; lane < 32; lane++) {
		const Load &to = *(Load *)lanes[lane];
		int g = lane / 4, t = lane % 4;
		for (int i = 0; i < 4; i++) {
			auto element = [&](int row, int column) -> unsigned { return ((Load *)lanes[8 * i + row])->row[column]; };
			unsigned low = to.transposed ? element(2 * t, g) : element(g, 2 * t), high = to.transposed ? element(2 * t + 1, g) : element(g, 2 * t + 1);
			to.x[i] = low | high << 16;
		}
	}
}

void load_rows(unsigned (&x)[4], const bf16 *row, bool transposed) {
	if ((uintptr_t)row % 16 != 0 || !is_shared(row, 16)) stop("ldmatrix of a row that is not 16 aligned bytes of shared memory");
	Load mine = {row, x, transposed};
	together(load, &mine);
}

struct Copy {
	void *to;
	const void *from;
	size_t bytes;
	bool present;
};

void make(const Copy &c) {
	if (c.present) memcpy(c.to, c.from, c.bytes);
	else memset(c.to, 0, c.bytes);
}

// The groups of copies of each thread, the last not ended; of which launch's block.
struct Copies {
	uint64_t block = 0;
	std::deque<std::vector<Copy>> groups;
};

std::map<unsigned, Copies> copies;

std::deque<std::vector<Copy>> &groups() {
	Copies &mine = copies[thread_number()];
	if (mine.block != block_number()) mine = {block_number(), {}};
	if (mine.groups.empty()) mine.groups.emplace_back();
	return mine.groups;
}

void copy(void *to, const void *from, size_t bytes, bool present) {
	if ((uintptr_t)to % bytes != 0 || (uintptr_t)from % bytes != 0 || !is_shared(to, bytes)) stop("cp.async to an address that it does not take");
	Copy made = {to, from, bytes, present};
	if (copies_are_early()) make(made);
	else groups().back().push_back(made);
}

} // namespace

unsigned __ballot_sync(unsigned, bool mine) {
	struct Vote {
		bool mine;
		unsigned all;
	} vote = {mine, 0};
	together([](void *const *lanes) {
		unsigned all = 0;
		for (int lane = 0; lane < 32; lane++) all |= (unsigned)((Vote *)lanes[lane])->mine << lane;
		for (int lane = 0; lane < 32; lane++) ((Vote *)lanes[lane])->all = all;
	}, &vote);
	return vote.all;
}

void mma(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
	Product mine = {&c, {a[0], a[1], a[2], a[3]}, {b0, b1}};
	together(multiply, &mine);
}

void load_matrices(unsigned (&x)[4], const bf16 *row) { load_rows(x, row, false); }
void load_transposed(unsigned (&x)[4], const bf16 *row) { load_rows(x, row, true); }

void copy_16(void *to, const void *from, bool present) { copy(to, from, 16, present); }
void copy_4(void *to, const void *from, bool present) { copy(to, from, 4, present); }
void copies_begun() { groups().emplace_back(); }

void copies_ended(unsigned pending) {
	auto &all = groups();
	while (all.size() > pending + 1) {
		for (const Copy &c : all.front()) make(c);
		all.pop_front();
	}
}

unsigned pair(float low, float high) { return narrow(low) | narrow(high) << 16; }
