#pragma once

#include <stdint.h>

#include <functional>
#include <vector>

// Kernel is a kernel of the device, compiled for the host. Each of its arguments lies in a slot of 8 bytes.
struct Kernel {
	const char *name;
	size_t arguments;
	std::function<void(const uint64_t *slots)> run;
};

const std::vector<Kernel> &kernels();
