//go:build cuda && cgo && linux && amd64

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/avgpipe/avgpipe/internal/checkpoint"
	"github.com/avgpipe/avgpipe/internal/envtest"
	"github.com/avgpipe/avgpipe/internal/gpu"
	"github.com/avgpipe/avgpipe/internal/obstacle"
	"github.com/avgpipe/avgpipe/internal/process"
	"github.com/avgpipe/avgpipe/stage/device/cuda"
	"github.com/avgpipe/avgpipe/stage/device/cuda/cudatest"
)

// sharedLibrary compiles C to a library of a name.
func sharedLibrary(t *testing.T, name, source string) (path string) {
	t.Helper()
	dir := t.TempDir()
	path = filepath.Join(dir, name)
	cc := exec.CommandContext(t.Context(), "g++", "-shared", "-fPIC", "-x", "c++", "-o", path, "-")
	cc.Stdin = strings.NewReader(source)
	if out, err := cc.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return path
}

// damaged dies of what a truncated file that is mapped does; stuck hangs, after it has written its process to the file STUCK.
const (
	damaged = "#include <signal.h>\n__attribute__((constructor)) static void load() { raise(SIGBUS); }\n"
	stuck   = "#include <stdio.h>\n#include <stdlib.h>\n#include <unistd.h>\n__attribute__((constructor)) static void load() {" +
		"FILE *f = fopen(getenv(\"STUCK\"), \"w\"); fprintf(f, \"%d\", getpid()); fclose(f); for (;;) pause(); }\n"
)

// emptyHandles is a cuBLAS that loads and makes no handle.
const emptyHandles = `extern "C" {
int cublasCreate_v2(void **to) { *to = 0; return 7; }
int cublasDestroy_v2() { return 1; }
int cublasGetVersion_v2() { return 1; }
int cublasSetStream_v2() { return 1; }
int cublasSetWorkspace_v2() { return 1; }
int cublasGemmEx() { return 1; }
}
`

// run1 runs the program with a configuration.
func run1(t *testing.T, config string, args ...string) (code int, out, messages string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "avgpiped.yaml")
	dir := t.TempDir()
	if err := os.WriteFile(file, fmt.Appendf(nil, "state_dir: %s\nsocket: %s/s\n%s", dir, dir, config), 0o600); err != nil {
		t.Fatal(err)
	}
	var o, m bytes.Buffer
	code = run(t.Context(), append(args, "--config", file), &o, &m)
	return code, o.String(), m.String()
}

// TestWhatTheConfigurationNamesForGPUsHasToBeUsable: the daemon does not start without it, and says the key, the path and what was found.
func TestWhatTheConfigurationNamesForGPUsHasToBeUsable(t *testing.T) {
	driver := cudatest.Library(t)
	dir := t.TempDir()
	pipe, empty, truncated := filepath.Join(dir, "pipe"), filepath.Join(dir, "empty"), sharedLibrary(t, "libcublas.so.12", damaged)
	collective := sharedLibrary(t, "libnccl.so.2", damaged)
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(empty, 0o700); err != nil {
		t.Fatal(err)
	}
	for config, want := range map[string]string{
		"cuda_driver: " + pipe: ":3:14: cuda_driver names what cannot be used: no CUDA device: " + pipe + " is a named pipe, expected a regular file",
		"cuda_driver: " + truncated: ":3:14: cuda_driver names what cannot be used: the process that opened " + truncated + " died by SIGBUS; its file, " +
			"or one that it needs, is damaged",
		"cuda_driver: libm.so.6": ":3:14: cuda_driver names what cannot be used: no CUDA device: libm.so.6",
		"cuda_libraries: " + dir + "/gone": ":3:17: cuda_libraries names what cannot be used: no cuBLAS: " + dir + "/gone is no directory, expected one with " +
			"libcublas.so.13",
		"cuda_libraries: " + empty: ":3:17: none of cuBLAS (libcublas.so.13, .12 or .11), cuDNN (libcudnn.so.9 or .8) and NCCL (libnccl.so.2) is in " + empty,
		"cuda_libraries: " + filepath.Dir(truncated) + "\ncuda_driver: " + driver.Path(): ":3:17: cuda_libraries names what cannot be used: the process that opened " +
			truncated + " died by SIGBUS",
		"cuda_libraries: " + filepath.Dir(collective): ":3:17: cuda_libraries names what cannot be used: the process that opened " + collective + " died by SIGBUS",
	} {
		for _, verb := range [][]string{nil, {"gpus"}} {
			if code, _, messages := run1(t, config, verb...); code != exitConfig || !strings.Contains(messages, want) {
				t.Errorf("%v with %s: exit code %d, want %d; no %q in: %s", verb, config, code, exitConfig, want, messages)
			}
		}
	}
}

// TestALibraryOfGPUsThatHangsIsNamed, its process does not outlive who asked, and ends when it is told to.
func TestALibraryOfGPUsThatHangsIsNamed(t *testing.T) {
	cudatest.Library(t) // else there is no compiler
	path, pid := sharedLibrary(t, "libcuda.so.1", stuck), filepath.Join(t.TempDir(), "pid")
	t.Setenv("STUCK", pid)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	started := func() process.ID {
		var n int
		envtest.Eventually(t, "the library is opened", func() bool {
			text, _ := os.ReadFile(pid)
			var err error
			n, err = strconv.Atoi(string(text))
			return err == nil
		})
		id, _ := process.Lookup(n)
		return id
	}
	ended := func(id process.ID) {
		envtest.Eventually(t, "the process that opened the library ends", func() bool { return !(process.Host{}).Alive(id) })
		if err := os.Remove(pid); err != nil {
			t.Error(err)
		}
	}
	socket := filepath.Join(t.TempDir(), "notify")
	t.Setenv("NOTIFY_SOCKET", socket)
	systemd, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	said := make(chan string, 1)
	go func() {
		message := make([]byte, 100)
		for n, err := systemd.Read(message); err == nil; n, err = systemd.Read(message) {
			select {
			case said <- string(message[:n]):
			default:
			}
		}
	}()
	c := defaultConfig()
	c.CUDADriver = path
	asks := prober{self, &c, 2 * time.Second, extendStart}
	var l libraries
	envtest.Eventually(t, "a process that was probed for 2 s has opened the library", func() bool { // a busy machine may not have let it
		l, err = asks.probe(t.Context())
		return opened(pid)
	})
	if want := "the process that opened " + path + " has not answered for 2s"; err == nil || !strings.Contains(err.Error(), "cuda_driver names what cannot be used: "+want) {
		t.Errorf("error is %v, want %q", err, want)
	}
	if l.why() == "" {
		t.Error("jobs get GPUs of a driver that hangs")
	}
	ended(started())
	if got := envtest.Receive(t, "systemd is told something", said); got != "EXTEND_TIMEOUT_USEC=92000000" {
		t.Errorf("systemd was told %q, want to wait for a step of 2 s, and 90 s for the rest", got)
	}
	if err := systemd.Close(); err != nil {
		t.Error(err)
	}

	alone := exec.Command(self, "probe", "--library", cuda.Driver, "--cuda-driver", path)
	if err := alone.Start(); err != nil {
		t.Fatal(err)
	}
	id := started()
	if err := alone.Process.Signal(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	if err := alone.Wait(); err == nil || err.Error() != "signal: terminated" {
		t.Errorf("told to end: %v", err)
	}
	ended(id)

	file := filepath.Join(t.TempDir(), "avgpiped.yaml")
	if err := os.WriteFile(file, fmt.Appendf(nil, "cuda_driver: %s\n", path), 0o600); err != nil {
		t.Fatal(err)
	}
	parent := exec.Command(self, "gpus", "--config", file)
	if err := parent.Start(); err != nil {
		t.Fatal(err)
	}
	id = started()
	if err := parent.Process.Kill(); err != nil {
		t.Error(err)
	}
	_ = parent.Wait() // it was killed
	ended(id)
}

// TestALibraryOfGPUsThatOpensNoHandleIsFoundBeforeAJob, whose workers are told not to open it.
func TestALibraryOfGPUsThatOpensNoHandleIsFoundBeforeAJob(t *testing.T) {
	driver := cudatest.Library(t)
	path := sharedLibrary(t, "libcublas.so.12", emptyHandles)
	c := defaultConfig()
	c.CUDADriver, c.CUDALibraries = driver.Path(), directories(filepath.Dir(path)+":"+driver.Directory())
	asks := prober{os.Args[0], &c, time.Minute, extendStart}
	l, err := asks.probe(t.Context())
	want := "open a handle of cuBLAS, " + path + ": status 7, CUBLAS_STATUS_INVALID_VALUE"
	if err != nil || l.blas.Error != want || l.blas.Path != path || l.driver.Error != "" || l.dnn.Error != "" || l.why() != "" {
		t.Errorf("found %+v, %v, want %q", l, err, want)
	}
	arguments, err := (&renewer{prober: &asks, log: zap.NewNop(), found: l}).arguments(t.Context())
	if err != nil || !slices.Equal(arguments, []string{"--without-cublas", want}) {
		t.Errorf("workers have %q, %v", arguments, err)
	}
}

// TestLibrariesThatChangeAreProbedAgain before a worker opens them: a damaged cuBLAS costs itself, a driver that is gone makes the worker wait.
func TestLibrariesThatChangeAreProbedAgain(t *testing.T) {
	fake, dir := cudatest.Library(t), t.TempDir()
	install := func(name, from string) {
		t.Helper()
		_ = os.Remove(filepath.Join(dir, name)) // it may be there
		if err := os.Symlink(from, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	driver, blas, bad := filepath.Join(dir, "libcuda.so.1"), filepath.Join(dir, "libcublas.so.12"), sharedLibrary(t, "libcublas.so.12", damaged)
	install("libcuda.so.1", fake.Path())
	install("libcublas.so.12", filepath.Join(fake.Directory(), "libcublas.so.12"))
	c := defaultConfig()
	c.CUDADriver, c.CUDALibraries = driver, directories(dir)
	asks := prober{os.Args[0], &c, time.Minute, untold}
	l, err := asks.probe(t.Context())
	if err != nil || l.blas.Error != "" || !slices.Contains(l.blas.Files, blas) || !slices.Contains(l.driver.Files, driver) {
		t.Fatalf("found %+v, %v", l, err)
	}
	core, logged := observer.New(zap.InfoLevel)
	r := renewer{prober: &asks, log: zap.New(core), found: l}
	step := func(without, waits string, lines int) {
		t.Helper()
		arguments, err := r.arguments(t.Context())
		if o := obstacle.Of(err); (waits == "") != (err == nil) || err != nil && (o == nil || !strings.Contains(o.String(), waits) || o.Passed() != nil) {
			t.Errorf("a worker waits for %v, want %q", err, waits)
		}
		blasOnly := slices.Index(arguments, "--without-cublas")
		if (without == "") != (blasOnly < 0) || without != "" && !strings.Contains(arguments[blasOnly+1], without) {
			t.Errorf("a worker has %q, want it to be without cuBLAS for %q", arguments, without)
		}
		if got := logged.TakeAll(); len(got) != lines {
			t.Errorf("%d lines are logged, want %d: %v", len(got), lines, got)
		}
	}
	step("", "", 0)
	install("libcublas.so.12", bad)
	step("the process that opened "+blas+" died by SIGBUS", "", 1)
	step("died by SIGBUS", "", 0)
	install("libcublas.so.12", filepath.Join(fake.Directory(), "libcublas.so.12"))
	step("", "", 1)
	if err := os.Rename(driver, driver+".old"); err != nil {
		t.Fatal(err)
	}
	step("", "the library of the CUDA driver, "+driver+", cannot be used: ", 1)
	step("", "cannot be used: no CUDA device: "+driver+": not found", 0)
	if err := os.Rename(driver+".old", driver); err != nil {
		t.Fatal(err)
	}
	step("", "", 1)
}

// TestALibraryThatEndsItsProcessIsNamed.
func TestALibraryThatEndsItsProcessIsNamed(t *testing.T) {
	cudatest.Library(t) // else there is no compiler
	path := sharedLibrary(t, "libcuda.so.1", "#include <stdlib.h>\n__attribute__((constructor)) static void load() { _Exit(0); }\n")
	code, _, messages := run1(t, "cuda_driver: "+path, "gpus")
	if want := "the process that opened " + path + " ended with exit status 0 before it answered"; code != exitConfig || !strings.Contains(messages, want) {
		t.Errorf("exit code %d, no %q in: %s", code, want, messages)
	}
}

// opened reports whether the library that hangs has written its process to a file.
func opened(pid string) bool {
	_, err := os.Stat(pid)
	return err == nil
}

// TestADaemonThatIsToldToEndWhileItProbesHasDoneSo.
func TestADaemonThatIsToldToEndWhileItProbesHasDoneSo(t *testing.T) {
	cudatest.Library(t) // else there is no compiler
	path, pid := sharedLibrary(t, "libcuda.so.1", stuck), filepath.Join(t.TempDir(), "pid")
	t.Setenv("STUCK", pid)
	dir := t.TempDir()
	c := defaultConfig()
	c.StateDir, c.Socket, c.CUDADriver = dir, filepath.Join(dir, "s"), path
	ctx, end := context.WithCancelCause(t.Context())
	go func() {
		envtest.Reached(t, "the library is opened", func() bool { return opened(pid) })
		end(errors.New("terminated"))
	}()
	if err := runNode(ctx, c, c.limits, zap.NewNop(), nil); err != nil {
		t.Errorf("it ended with %v", err)
	}
}

// TestAnNCCLThatNobodyNamedAndThatIsDamagedCostsItself: the daemon starts, and workers are told not to open it.
func TestAnNCCLThatNobodyNamedAndThatIsDamagedCostsItself(t *testing.T) {
	driver, path := cudatest.Library(t), sharedLibrary(t, "libnccl.so.2", damaged)
	t.Setenv("LD_LIBRARY_PATH", filepath.Dir(path))
	c := defaultConfig()
	c.CUDADriver = driver.Path()
	l, err := (&prober{os.Args[0], &c, time.Minute, extendStart}).probe(t.Context())
	const want = "the process that opened libnccl.so.2 died by SIGBUS"
	if without := l.without(); err != nil || !strings.HasPrefix(l.nccl.Error, want) || !slices.Equal(without, []string{"--without-nccl", l.nccl.Error}) {
		t.Errorf("found %+v, %v; workers get %q", l.nccl, err, without)
	}
}

// TestTheRestOfAStartIsWhatTheUnitAllows, since systemd is asked for it anew with each step of the libraries.
func TestTheRestOfAStartIsWhatTheUnitAllows(t *testing.T) {
	unit, err := os.ReadFile("../../deploy/avgpiped.service")
	if want := fmt.Sprintf("\nTimeoutStartSec=%.0f\n", startRest.Seconds()); err != nil || !strings.Contains(string(unit), want) {
		t.Errorf("the unit has no %q: %v", want, err)
	}
}

// TestGPUsThatAVariableHidesAreCounted, once, and with nvidia-smi's numbers, where the driver alone lists them.
func TestGPUsThatAVariableHidesAreCounted(t *testing.T) {
	driver := cudatest.Library(t)
	config := "cuda_driver: " + driver.Path() + "\ncuda_libraries: " + driver.Directory() + "\n"
	t.Setenv("FAKE_CUDA_DEVICES", "3")
	t.Setenv("CUDA_VISIBLE_DEVICES", "1")
	code, out, messages := run1(t, config, "gpus", "-o", "json")
	var r gpuReport
	if err := json.Unmarshal([]byte(out), &r); err != nil || code != exitDone {
		t.Fatalf("exit code %d: %s%v", code, messages, err)
	}
	if len(r.GPUs) == 1 && r.GPUs[0].Health.Level != gpu.Unknown { // nothing but the driver lists it
		t.Errorf("it is %s", r.GPUs[0].Health)
	}
	if len(r.GPUs) != 1 || r.GPUs[0].Index != 1 || !strings.HasPrefix(r.Hidden, "CUDA_VISIBLE_DEVICES=1 hides 2 of the 3 GPUs of this host: 0 (") {
		t.Errorf("found %+v", r)
	}
	code, out, messages = run1(t, config, "gpus")
	if code != exitDone || !strings.Contains(out, "hides 2 of the 3 GPUs") || !strings.Contains(out, "cuBLAS   "+driver.Directory()+"/libcublas.so.12") {
		t.Errorf("exit code %d: %s%s", code, out, messages)
	}
	t.Setenv("FAKE_CUDA_OLD", "1")
	const old = "GPU 1 (no GPU, fibers): compute capability 7.0, the kernels need 8.0"
	if code, out, messages = run1(t, config, "gpus"); code != exitFailed || !strings.Contains(out, old) || !strings.Contains(messages, "jobs can use no GPU: "+old+"; CUDA_VISIBLE_DEVICES=1 hides 2") {
		t.Errorf("exit code %d: %s%s", code, out, messages)
	}
	t.Setenv("FAKE_CUDA_OLD", "3")
	t.Setenv("CUDA_VISIBLE_DEVICES", "")
	if code, _, messages = run1(t, config, "gpus"); code != exitFailed || !strings.Contains(messages, "jobs can use no GPU: CUDA_VISIBLE_DEVICES= hides 3 of the 3 GPUs") {
		t.Errorf("exit code %d: %s", code, messages)
	}
	if code, _, messages = run1(t, config+"gpus: []\n", "gpus"); code != exitFailed || !strings.Contains(messages, "jobs can use no GPU: the configuration gives jobs none") {
		t.Errorf("exit code %d: %s", code, messages)
	}
}

// TestAGPUThatTheDaemonKeepsAsSickIsListedSo: its record is in the state directory.
func TestAGPUThatTheDaemonKeepsAsSickIsListedSo(t *testing.T) {
	driver, state := cudatest.Library(t), t.TempDir()
	file := filepath.Join(state, "avgpiped.yaml")
	if err := os.WriteFile(file, fmt.Appendf(nil, "state_dir: %s\ncuda_driver: %s\n", state, driver.Path()), 0o600); err != nil {
		t.Fatal(err)
	}
	listed := func() gpu.GPU {
		var r gpuReport
		var out, messages bytes.Buffer
		code := run(t.Context(), []string{"gpus", "-o", "json", "--config", file}, &out, &messages)
		if err := json.Unmarshal(out.Bytes(), &r); err != nil || code != exitDone || len(r.GPUs) == 0 {
			t.Fatalf("exit code %d: %s%v", code, messages.String(), err)
		}
		return r.GPUs[0]
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		t.Fatal(err)
	}
	kept := map[string]any{
		"boot": strings.TrimSpace(string(boot)), "gpus": gpu.Faults{listed().UUID: {XIDs: []gpu.XID{{Code: 79, Count: 1, At: time.Now()}}}},
	}
	if err := checkpoint.WriteRecord(filepath.Join(state, "gpus"), "gpus", 1, kept, 0o640); err != nil {
		t.Fatal(err)
	}
	if g := listed(); g.Health.Level != gpu.Sick {
		t.Errorf("it is %s", g.Health)
	}
}

// TestAHostWithoutGPUsSaysWhatWasTried.
func TestAHostWithoutGPUsSaysWhatWasTried(t *testing.T) {
	if _, err := cuda.Processors(cuda.Config{}); err == nil {
		t.Log("this host has GPUs")
		return
	}
	code, out, messages := run1(t, "", "gpus")
	if code != exitFailed || !strings.HasPrefix(out, "LIBRARY") || !strings.Contains(out, "libcublas.so.13") || strings.Contains(out, "  libcublas.so.11  ") ||
		!strings.Contains(out, "libcuda.so.1") || !strings.Contains(messages, "jobs can use no GPU: no CUDA device: libcuda.so.1: not found by the loader") {
		t.Errorf("exit code %d: %s%s", code, out, messages)
	}
}
