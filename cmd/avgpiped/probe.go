package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/avgpipe/avgpipe/internal/gpu"
	"github.com/avgpipe/avgpipe/internal/gpu/nvml"
	"github.com/avgpipe/avgpipe/internal/node"
	"github.com/avgpipe/avgpipe/internal/process"
	"github.com/avgpipe/avgpipe/stage/device/cuda"
)

// management is NVIDIA's management library, which is probed as those of package cuda are.
const management = "NVML"

// probeBound is how long a library may take to be opened, or initialised. Without persistence mode, the driver initialises each GPU anew.
const probeBound = 30 * time.Second

// finding is what a process found of a library that it opened for the daemon, or how it ended before it did.
type finding struct {
	cuda.Finding

	Library string `json:"library"`
	Opening string `json:"opening,omitempty"` // what the process is about to open: a line of its own
	// Files are those of the library and of what it needs, as far as they are known.
	Files []string   `json:"files,omitempty"`
	seen  []identity // of the files; none: unknown
	hung  bool       // it did not end: the library may be whole once the file system that it is on is
}

// path is what a library was opened by, or what was tried; "" of one that is absent: the error has all its names.
func (f *finding) path() string {
	if f.Absent {
		return ""
	}
	return cmp.Or(f.Path, f.Opening)
}

// newProbeCommand opens a library, and prints findings: before each step what it opens, at the end what was found.
func newProbeCommand() *cobra.Command {
	var (
		c       cuda.Config
		library string
		handles bool
	)
	cmd := graphicsFlags(hidden("probe --library NAME", "Open a library of GPUs and say what it is", func(cmd *cobra.Command) error {
		signal.Reset(syscall.SIGTERM, syscall.SIGINT) // a library that hangs does not let go of its thread
		cuda.DieOfFaults()
		lines := json.NewEncoder(cmd.OutOrStdout())
		var broken error
		c.Opening = func(path string) { broken = errors.Join(broken, lines.Encode(finding{Opening: path})) }
		var found cuda.Finding
		if library == management {
			found = probeManagement(c.Opening)
		} else {
			found = cuda.Probe(library, c, handles)
		}
		return errors.Join(broken, lines.Encode(finding{Finding: found, Files: mappedLibraries()}))
	}), &c)
	cmd.Flags().StringSliceVar(&c.Visible, "visible", nil, "UUIDs of the GPUs to open; none: all")
	cmd.Flags().BoolVar(&handles, "handles", false, "make a handle of the library on a GPU")
	return required(cmd, &library, "library", "which: NVML, driver, cuBLAS, cuDNN or NCCL")
}

func probeManagement(opening func(path string)) (f cuda.Finding) {
	opening("libnvidia-ml.so.1")
	source, err := nvml.Open()
	if err == nil {
		err = source.Close()
	}
	if err != nil {
		f.Error, f.Absent = err.Error(), errors.Is(err, gpu.ErrNone)
	}
	return f
}

// prober has libraries opened by processes of their own.
type prober struct {
	self   string // this program
	config *config
	bound  time.Duration             // of a step: to open a library, or to initialise it
	step   func(bound time.Duration) // told before each
}

// startRest is TimeoutStartSec of deploy/avgpiped.service: what a start may take beside the libraries.
const startRest = 90 * time.Second

// extendStart has systemd wait for a step of a start, and for the rest, so that the daemon says what hangs. Without systemd nobody is told.
func extendStart(bound time.Duration) {
	_, _ = daemon.SdNotify(false, fmt.Sprintf("EXTEND_TIMEOUT_USEC=%d", (bound+startRest).Microseconds())) // the node says what fails of this
}

// untold is for steps that no start waits for.
func untold(time.Duration) {}

// ask has a process open a library. It dies with this one. A process that cannot even be killed is left behind.
func (p *prober) ask(ctx context.Context, library string, more ...string) finding {
	asking, end := context.WithCancel(ctx)
	defer end()
	cmd := exec.CommandContext(asking, p.self, slices.Concat([]string{"probe", "--library", library}, p.config.graphicsArguments(), more)...)
	process.Isolate(cmd)
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	cmd.Env = append(slices.DeleteFunc(cmd.Env, func(v string) bool {
		return strings.HasPrefix(v, "CUDA_VISIBLE_DEVICES=") || strings.HasPrefix(v, "CUDA_DEVICE_ORDER=")
	}), "CUDA_DEVICE_ORDER=PCI_BUS_ID") // the selection applies the one; and numbers are nvidia-smi's
	var messages bytes.Buffer
	cmd.Stderr = &messages
	lines, ended := make(chan finding), make(chan error, 1)
	go func() {
		runtime.LockOSThread() // the signal of a parent's death is that of the thread that started the child
		defer runtime.UnlockOSThread()
		ended <- follow(asking, cmd, lines)
	}()
	p.step(p.bound)
	late := time.NewTimer(p.bound)
	defer late.Stop()
	last, at := finding{}, library
	var opened []string
	for {
		select {
		case f := <-lines:
			last, at = f, cmp.Or(f.Opening, at)
			if f.Opening != "" {
				opened = append(opened, f.Opening)
			}
			p.step(p.bound)
			late.Reset(p.bound)
		case err := <-ended:
			if err == nil && last.Opening == "" {
				last.Library, last.Opening = library, at
				return last.identified(opened)
			}
			return finding{Library: library, Opening: at, Finding: cuda.Finding{Error: died(at, err, messages.String())}}.identified(opened)
		case <-late.C:
			return hung(library, at, fmt.Sprintf("the process that opened %s has not answered for %v and was killed; see whether its file system and "+
				"nvidia-smi answer", at, p.bound))
		case <-ctx.Done():
			return hung(library, at, context.Cause(ctx).Error())
		}
	}
}

// hung is the finding of a process that was not waited for.
func hung(library, opening, why string) finding {
	return finding{Library: library, Opening: opening, hung: true, Finding: cuda.Finding{Error: why}}
}

// follow runs a process, which the end of ctx kills, and passes on the lines that it prints, until it ends.
func follow(ctx context.Context, cmd *exec.Cmd, lines chan<- finding) error {
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return err
	}
	decoder := json.NewDecoder(out)
	for {
		var f finding
		if err := decoder.Decode(&f); err != nil {
			_, _ = io.Copy(io.Discard, out) // what is no line says nothing
			return cmd.Wait()
		}
		select {
		case lines <- f:
		case <-ctx.Done():
			return cmd.Wait()
		}
	}
}

// died says how a process ended that opened something.
func died(opening string, err error, messages string) string {
	if err == nil {
		return fmt.Sprintf("the process that opened %s ended with exit status 0 before it answered; its file, or one that it needs, is not for this host: install it again", opening)
	}
	exit, ok := errors.AsType[*exec.ExitError](err)
	if !ok {
		return fmt.Sprintf("open %s in a process of its own: %v", opening, err)
	}
	if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return fmt.Sprintf("the process that opened %s died by %s; its file, or one that it needs, is damaged or not for this host: install it again",
			opening, unix.SignalName(status.Signal()))
	}
	line, _, _ := strings.Cut(messages, "\n")
	return fmt.Sprintf("the process that opened %s ended: %v: %s", opening, err, strings.TrimPrefix(line, "avgpiped: "))
}

// libraries are those of GPUs, as found before anything else opens them.
type libraries struct{ management, driver, blas, dnn, nccl finding }

// all are the libraries in the order in which they are needed.
func (l *libraries) all() []finding { return []finding{l.management, l.driver, l.blas, l.dnn, l.nccl} }

// probe finds the libraries. Those that the configuration names and that cannot be used are an error.
func (p *prober) probe(ctx context.Context) (l libraries, err error) {
	if !cuda.Built || p.config.selection().None() {
		return l, nil
	}
	var asking sync.WaitGroup
	asking.Go(func() { l.management = p.ask(ctx, management) })
	asking.Go(func() { l.nccl = p.ask(ctx, cuda.NCCL) })
	l.driver = p.ask(ctx, cuda.Driver)
	handles := p.handles(l.driver)
	asking.Go(func() { l.blas = p.ask(ctx, cuda.BLAS, handles...) })
	asking.Go(func() { l.dnn = p.ask(ctx, cuda.DNN, handles...) })
	asking.Wait()
	if ctx.Err() != nil {
		return l, context.Cause(ctx)
	}
	return l, p.config.named(&l)
}

// handles are arguments by which a process makes a handle of a library, on the first GPU that jobs may use.
func (p *prober) handles(driver finding) []string {
	if chosen, err := p.config.selection().Of(gpusOf(driver)); err == nil && len(chosen) > 0 {
		return []string{"--handles", "--visible", chosen[0].UUID}
	}
	return nil
}

// named is the error of the first library that the configuration names and that cannot be used. A path that hangs may pass; all else lasts.
func (c *config) named(l *libraries) error {
	inNamed := func(path string) bool {
		dirs := c.CUDALibraries.list()
		return slices.Contains(dirs, path) || slices.Contains(dirs, filepath.Dir(path))
	}
	refuse := func(key string, f finding) error {
		err := fmt.Errorf("%s names what cannot be used: %s", key, f.Error)
		if f.hung {
			return err
		}
		return c.explain(&node.KeyError{Key: key, Err: err})
	}
	if f := l.driver; f.Error != "" && !f.NoDevice && c.CUDADriver != defaultConfig().CUDADriver {
		return refuse("cuda_driver", f)
	}
	for _, f := range []finding{l.blas, l.dnn, l.nccl} {
		if f.Error != "" && f.Path == "" && inNamed(f.Opening) {
			return refuse("cuda_libraries", f)
		}
	}
	if dirs := c.CUDALibraries.list(); len(dirs) > 0 && !inNamed(l.blas.Path) && !inNamed(l.dnn.Path) && !inNamed(l.nccl.Path) {
		return c.explain(&node.KeyError{Key: "cuda_libraries", Err: fmt.Errorf("none of cuBLAS (libcublas.so.13, .12 or .11), cuDNN (libcudnn.so.9 or .8) and NCCL (libnccl.so.2) is in %s; "+
			"name the directories that they are in, or none", strings.Join(dirs, " or "))})
	}
	return nil
}
