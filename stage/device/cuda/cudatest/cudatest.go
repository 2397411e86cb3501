//go:build cuda && cgo && linux && amd64

// Package cudatest is a driver of CUDA for tests, without a device: the library that driver/ is the source of. It runs the kernels of the
// device, compiled by the host's C++ compiler from the same sources, and can fail as devices do.
package cudatest

/*
#cgo LDFLAGS: -ldl
#include <dlfcn.h>
#include <stdlib.h>

static void *found(const char *path, const char *name) {
	void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	return library == NULL ? NULL : dlsym(library, name);
}

static void reset(void *fake, size_t bytes) { ((void (*)(size_t))fake)(bytes); }
static void trap(void *fake, const char *kernel, int code) { ((void (*)(const char *, int))fake)(kernel, code); }
static void fail(void *fake, const char *function, int code) { ((void (*)(const char *, int))fake)(function, code); }
static void plain(void *fake) { ((void (*)(void))fake)(); }
static void set(void *fake, int code) { ((void (*)(int))fake)(code); }
static void pretend(void *fake, long version) { ((void (*)(long))fake)(version); }
static long count(void *fake) { return ((long (*)(void))fake)(); }
static long calls(void *fake, const char *function) { return ((long (*)(const char *))fake)(function); }
*/
import "C"

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"sync"
	"testing"
	"unsafe"

	"github.com/avgpipe/avgpipe/internal/envtest"
)

// Codes of failures, as the driver has them.
const (
	IllegalAddress = 700
	LaunchFailed   = 719
	Unknown        = 999
)

// Stall is a code of functions of NCCL, which then hang: ncclGroupEnd until a communicator is aborted, others as long as they have it.
const Stall = 1000

// Memory is the bytes of each device that Library starts with.
const Memory = 1 << 30

// Driver is the library, as a process that has loaded it may make it behave.
type Driver struct{ path string }

// Library builds the library, unless a test before did, and resets it. A machine without a C++ compiler skips the test.
func Library(t testing.TB) Driver {
	t.Helper()
	if _, err := exec.LookPath("g++"); err != nil {
		envtest.Missing(t, "no C++ compiler: %v", err)
	}
	path, err := build()
	if err != nil {
		t.Fatal(err)
	}
	d := Driver{path}
	d.Reset(Memory)
	t.Cleanup(func() { d.Reset(Memory) })
	return d
}

var kernel = regexp.MustCompile(`(?m)^(?:\w+_)?KERNEL (\w+)[( ]`)

// build compiles the library to a directory that its sources name, unless it is there. The directory appears as a whole: tests of several packages may build it at
// once, and all its names must be one file, since a process that opens two would have two drivers.
var build = sync.OnceValues(func() (string, error) {
	root, err := moduleRoot()
	if err != nil {
		return "", err
	}
	source := filepath.Join(root, "stage/device/cuda/cudatest/driver")
	names, digest, err := scan(source)
	if err != nil {
		return "", err
	}
	caches, err := os.UserCacheDir()
	if err != nil {
		caches = os.TempDir()
	}
	parent := filepath.Join(caches, "avgpiped-cudatest", "whole")
	dir := filepath.Join(parent, digest)
	library := filepath.Join(dir, libraries[0])
	if _, err := os.Stat(library); err == nil {
		return library, nil
	}
	if err := os.MkdirAll(parent, 0o700); err != nil {
		return "", err
	}
	made, err := os.MkdirTemp(parent, "build")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(made) }()
	if err := compile(source, made, names); err != nil {
		return "", err
	}
	if err := os.Rename(made, dir); err != nil && !errors.Is(err, fs.ErrExist) { // another process was first
		return "", err
	}
	return library, nil
})

// moduleRoot is the directory of go.mod, which a test runs below. A test that was built with -trimpath does not know where its sources are.
func moduleRoot() (string, error) {
	start, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for dir := start; ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", fmt.Errorf("find the sources of the driver for tests: no go.mod in %s or above it; expected that the test runs in its package's directory", start)
		}
	}
}

// libraries are the names of the one library.
var libraries = []string{"libcuda.so.1", "libcublas.so.12", "libcublasLt.so.12", "libcudnn.so.9", "libnccl.so.2"}

// compile makes the library in a directory, under all its names.
func compile(source, made string, names []byte) error {
	if err := os.WriteFile(filepath.Join(made, "names.inc"), names, 0o600); err != nil {
		return err
	}
	library := filepath.Join(made, libraries[0])
	compile := exec.Command("g++", "-std=c++17", "-O2", "-march=native", "-ffp-contract=off", "-fno-strict-aliasing", "-fPIC", "-shared",
		"-fvisibility=hidden", "-Wall", "-Wextra", "-Wno-sign-compare", "-Wno-unused-function", "-I", made, "-o", library,
		"blas.cc", "dnn.cc", "driver.cc", "fibers.cc", "kernels.cc", "nccl.cc", "warp.cc")
	compile.Dir = source
	if out, err := compile.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", compile, err, out)
	}
	for _, name := range libraries[1:] {
		if err := os.Link(library, filepath.Join(made, name)); err != nil {
			return err
		}
	}
	return nil
}

// scan lists the kernels in the form that driver/kernels.cc reads, and takes the digest of all sources.
func scan(source string) (names []byte, digest string, err error) {
	sum := sha256.New()
	for _, pattern := range []string{"*.cc", "*.h", "../../driver/include/*.h", "../../kernels/*.cu", "../../kernels/*.cuh"} {
		files, err := filepath.Glob(filepath.Join(source, pattern))
		if err == nil && len(files) == 0 {
			err = fmt.Errorf("no files %s in %s; expected the sources of the driver for tests", pattern, source)
		}
		if err != nil {
			return nil, "", err
		}
		for _, name := range files {
			text, err := os.ReadFile(name)
			if err != nil {
				return nil, "", err
			}
			sum.Write(text)
			for _, found := range kernel.FindAllSubmatch(text, -1) {
				names = fmt.Appendf(names, "NAME(%s)\n", found[1])
			}
		}
	}
	return names, hex.EncodeToString(sum.Sum(nil)), nil
}

// Path is where the library lies.
func (d Driver) Path() string { return d.path }

// Directory holds the same library by the names of cuBLAS, cuDNN and NCCL.
func (d Driver) Directory() string { return filepath.Dir(d.path) }

// function is an exported function of the library.
func (d Driver) function(name string) unsafe.Pointer {
	path, symbol := C.CString(d.path), C.CString(name)
	defer C.free(unsafe.Pointer(path))
	defer C.free(unsafe.Pointer(symbol))
	found := C.found(path, symbol)
	if found == nil {
		panic(fmt.Sprintf("cudatest: %s has no %s", d.path, name))
	}
	return found
}

// Reset makes the devices whole, with so many bytes of memory, and begins to count its calls.
func (d Driver) Reset(bytes int) { C.reset(d.function("fake_reset"), C.size_t(bytes)) }

// Trap makes a kernel fail from its next launch on.
func (d Driver) Trap(kernel string, code int) {
	name := C.CString(kernel)
	defer C.free(unsafe.Pointer(name))
	C.trap(d.function("fake_trap"), name, C.int(code))
}

// Fail makes a function fail from now on, with a code of its library: cuMemcpyPeerAsync, cuDeviceCanAccessPeer, or one of NCCL. 0 makes it whole.
func (d Driver) Fail(function string, code int) {
	name := C.CString(function)
	defer C.free(unsafe.Pointer(name))
	C.fail(d.function("fake_fail"), name, C.int(code))
}

// Apart makes devices that cannot reach each other's memory.
func (d Driver) Apart() { C.plain(d.function("fake_apart")) }

// Version makes the driver one for a version of CUDA: 11080 is 11.8.
func (d Driver) Version(number int) { C.set(d.function("fake_version"), C.int(number)) }

// Capability makes the device one of a major compute capability, whose machine code it takes; 8 after Reset.
func (d Driver) Capability(major int) { C.set(d.function("fake_capability"), C.int(major)) }

// RefuseBinaries makes the driver take PTX alone.
func (d Driver) RefuseBinaries() { C.set(d.function("fake_refuse_binaries"), 1) }

// RefuseEpilogues makes cublasLt multiply nothing, or again all.
func (d Driver) RefuseEpilogues(whether bool) {
	number := C.int(0)
	if whether {
		number = 1
	}
	C.set(d.function("fake_refuse_epilogues"), number)
}

// Lose makes all calls fail from now on.
func (d Driver) Lose(code int) { C.set(d.function("fake_lose"), C.int(code)) }

// Calls is how often a function was called since Reset, by the name of its symbol: "cuLaunchKernel".
func (d Driver) Calls(function string) int {
	name := C.CString(function)
	defer C.free(unsafe.Pointer(name))
	return int(C.calls(d.function("fake_calls"), name))
}

// PretendVersion makes cuDNN say that it is of a version.
func (d Driver) PretendVersion(version int) {
	C.pretend(d.function("fake_dnn_version"), C.long(version))
}

// Held is how many bytes of all devices are allocated.
func (d Driver) Held() int { return int(C.count(d.function("fake_held"))) }
