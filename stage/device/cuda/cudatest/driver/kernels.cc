// The kernels of the device as functions of the host, by name.
#include "kernels.h"

#include <utility>

#include "shim.h"
#include "warp.h"

#include "../../kernels/kernels.cu"

namespace {

template <class... Args, size_t... I> void call(void (*kernel)(Args...), const uint64_t *slots, std::index_sequence<I...>) {
	kernel(*(const Args *)(slots + I)...);
}

template <class... Args> Kernel describe(const char *name, void (*kernel)(Args...)) {
	return {name, sizeof...(Args), [kernel](const uint64_t *slots) { call(kernel, slots, std::index_sequence_for<Args...>()); }};
}

} // namespace

const std::vector<Kernel> &kernels() {
	static const std::vector<Kernel> all = {
#define NAME(kernel) describe(#kernel, kernel),
#include "names.inc" // which package cudatest makes of the sources
	};
	return all;
}
