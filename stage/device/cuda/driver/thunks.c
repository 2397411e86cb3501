//go:build cuda && cgo && linux && amd64

#define _GNU_SOURCE
#include "thunks.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "include/cuda.h"

// What is called before the driver is loaded, or lacks in it, fails.
static CUresult absent(void) { return CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND; }

// Each function of the driver is a jump to where its symbol was found: arguments stay where they are.
#define FUNCTION(name, version, ...)                                      \
	__attribute__((visibility("hidden"))) void *to_##name = (void *)absent; \
	__asm__(".text\n.globl " #name "\n.type " #name ", @function\n" #name ": endbr64\n\tjmp *to_" #name "(%rip)\n");
#define NEEDED FUNCTION
#include "include/functions.h"
#undef NEEDED
#undef FUNCTION

static const struct {
	const char *name;
	void **to;
	int needed;
} functions[] = {
#define FUNCTION(name, version, ...) {#name #version, &to_##name, 0},
#define NEEDED(name, version, ...) {#name #version, &to_##name, 1},
#include "include/functions.h"
};

// gorgonia.org/cu calls cuInit when a program starts and ends the program where that fails. The driver is initialised by avg_init.
CUresult cuInit(unsigned flags) { return flags == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE; }

static CUresult (*initialise)(unsigned);

const char *avg_load(void *library) {
	static char names[4096];
	names[0] = 0;
	for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
		void *found = dlsym(library, functions[i].name);
		if (found != NULL) *functions[i].to = found;
		else if (functions[i].needed) snprintf(names + strlen(names), sizeof names - strlen(names), " %s", functions[i].name);
	}
	*(void **)&initialise = dlsym(library, "cuInit");
	if (initialise == NULL) strncat(names, " cuInit", sizeof names - strlen(names) - 1);
	return names;
}

int avg_init(void) { return initialise(0); }
