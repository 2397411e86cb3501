//go:build cuda && cgo && linux && amd64

#define _GNU_SOURCE
#include "library.h"

#include <dlfcn.h>
#include <link.h>
#include <signal.h>
#include <stddef.h>
#include <sys/resource.h>

void *avg_library_open(const char *name, const char **message, const char **path) {
	void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
	if (library == NULL) {
		*message = dlerror();
		return NULL;
	}
	struct link_map *map;
	if (dlinfo(library, RTLD_DI_LINKMAP, &map) == 0) *path = map->l_name;
	return library;
}

int avg_die_of_faults(void) {
	const int faults[] = {SIGBUS, SIGSEGV, SIGFPE, SIGILL, SIGABRT};
	for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) signal(faults[i], SIG_DFL);
	return setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
}
