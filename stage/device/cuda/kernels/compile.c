// compile SOURCE ARCHITECTURE compiles CUDA C++ with the library NVRTC and prints PTX for a virtual architecture (compute_80), machine code for a
// real one (sm_90): `make kernels` runs it. Nothing else of a CUDA toolkit is needed, and no device.
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct program *program;

static const char *libraries[] = {"libnvrtc.so.11.2", "libnvrtc.so.12", "libnvrtc.so.13", "libnvrtc.so"};

static void *library;

static void *function(const char *name) {
	void *found = dlsym(library, name);
	if (found == NULL) {
		fprintf(stderr, "compile: %s\n", dlerror());
		exit(1);
	}
	return found;
}

#define CALL(name, ...) ((int (*)())function("nvrtc" #name))(__VA_ARGS__)

// give writes what NVRTC gives by a call for its size and one for its bytes. Text ends with a 0, which is not written.
static void give(FILE *to, program p, const char *size, const char *get, int text) {
	size_t bytes = 0;
	((int (*)(program, size_t *))function(size))(p, &bytes);
	char *found = calloc(1, bytes + 1);
	((int (*)(program, char *))function(get))(p, found);
	fwrite(found, 1, bytes - (text && bytes > 0), to);
	free(found);
}

int main(int count, char **arguments) {
	if (count != 3) return fprintf(stderr, "usage: compile SOURCE ARCHITECTURE\n"), 2;
	for (size_t i = 0; library == NULL && i < sizeof libraries / sizeof *libraries; i++) library = dlopen(libraries[i], RTLD_NOW);
	if (library == NULL) return fprintf(stderr, "compile: %s; install NVRTC, Debian's package libnvrtc11.2\n", dlerror()), 1;
	char source[4096], include[4096], architecture[64];
	snprintf(source, sizeof source, "#include \"%s\"\n", arguments[1]);
	snprintf(architecture, sizeof architecture, "--gpu-architecture=%s", arguments[2]);
	snprintf(include, sizeof include, "--include-path=.");
	const char *options[] = {architecture, include, "--std=c++14", "--fmad=false"};
	program p = NULL;
	CALL(CreateProgram, &p, source, "kernels", 0, NULL, NULL);
	int failed = CALL(CompileProgram, p, (int)(sizeof options / sizeof *options), options);
	give(stderr, p, "nvrtcGetProgramLogSize", "nvrtcGetProgramLog", 1);
	if (failed) return 1;
	if (strncmp(arguments[2], "sm_", 3) == 0) give(stdout, p, "nvrtcGetCUBINSize", "nvrtcGetCUBIN", 0);
	else give(stdout, p, "nvrtcGetPTXSize", "nvrtcGetPTX", 1);
	return 0;
}
