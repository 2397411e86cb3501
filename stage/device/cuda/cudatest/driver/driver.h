// What the libraries that run on streams of the driver need of it.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include <functional>
#include <utility>
#include <vector>

extern "C" {
#include "../../driver/include/cuda.h"
}

#define EXPORT extern "C" __attribute__((visibility("default")))

// hand_over gives a stream what it does when somebody waits for it: a call of the name.
CUresult hand_over(const char *name, CUstream stream, std::function<CUresult()> task);

// lies_on_device reports whether bytes from `at` on lie in one allocation of the device.
bool lies_on_device(const void *at, size_t bytes);

// On makes a device that of the thread's calls, by its number, as libraries do that know several.
struct On {
	CUcontext before;
	explicit On(int device);
	~On();
};

// refusal is how a test has a function of a library fail, or 0. It counts the call.
int refusal(const char *name);

// end_of runs what a stream has been given so far.
std::function<CUresult()> end_of(CUstream stream);
