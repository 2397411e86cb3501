//go:build cuda && cgo && linux && amd64

#define _GNU_SOURCE
#include "thunks.h"

#include <dlfcn.h>
#include <stddef.h>
#include <string.h>

// What is called before the library is loaded, or lacks in it, fails: NVML_ERROR_FUNCTION_NOT_FOUND.
static int absent(void) { return 13; }

static const char *no_words(void) { return "a failure that libnvidia-ml.so.1 has no words for"; }

// Each function is a jump to where its symbol was found: arguments stay where they are. The program alone sees it.
#define FUNCTION(name)                                                    \
	__attribute__((visibility("hidden"))) void *to_##name = (void *)absent; \
	__asm__(".text\n.globl " #name "\n.hidden " #name "\n.type " #name ", @function\n" #name ": endbr64\n\tjmp *to_" #name "(%rip)\n");
#include "functions.h"
#undef FUNCTION

static const struct {
	const char *name;
	void **to;
} functions[] = {
#define FUNCTION(name) {#name, &to_##name},
#include "functions.h"
};

const char *avg_nvml_load(const char *path) {
	to_nvmlErrorString = (void *)no_words;
	void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (library == NULL) return dlerror();
	for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
		void *found = dlsym(library, functions[i].name);
		if (found != NULL) *functions[i].to = found;
	}
	return NULL;
}
