package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"go.uber.org/zap"

	"github.com/avgpipe/avgpipe/internal/gpu"
	"github.com/avgpipe/avgpipe/internal/gpu/nvml"
	"github.com/avgpipe/avgpipe/internal/nearest"
	"github.com/avgpipe/avgpipe/internal/node"
	"github.com/avgpipe/avgpipe/stage/device/cuda"
)

// directories are paths of directories, with colons between them as in LD_LIBRARY_PATH.
type directories string

// Wants implements strictyaml.Value.
func (*directories) Wants() string { return "absolute paths of directories, with colons between them" }

// Set implements strictyaml.Value.
func (d *directories) Set(text string) bool {
	for path := range strings.SplitSeq(text, ":") {
		if !filepath.IsAbs(path) {
			return false
		}
	}
	*d = directories(text)
	return true
}

// list are the paths.
func (d directories) list() []string {
	return strings.FieldsFunc(string(d), func(r rune) bool { return r == ':' })
}

// launchesVariable says in the daemon's environment how workers give operations to GPUs.
const launchesVariable = "AVGPIPED_CUDA_LAUNCHES"

// checkLaunches reports why the variable cannot be used.
func checkLaunches() error {
	text := os.Getenv(launchesVariable)
	if text == "" || slices.Contains(cuda.AllLaunches, cuda.Launches(text)) {
		return nil
	}
	var all []string
	for _, l := range cuda.AllLaunches {
		all = append(all, string(l))
	}
	near := ""
	if word := nearest.Word(text, all); word != "" {
		near = "; did you mean " + word + "?"
	}
	return configError(fmt.Errorf("the environment variable %s is %q, expected %s, or nothing%s", launchesVariable, text, strings.Join(all, ", "), near))
}

// graphicsFlags gives a verb flags that say where the libraries of GPUs are. The daemon passes its configuration on so: its processes do
// not read the file.
func graphicsFlags(cmd *cobra.Command, c *cuda.Config) *cobra.Command {
	c.Launches = cuda.Launches(os.Getenv(launchesVariable)) // of the daemon, whose environment its processes have
	cmd.Flags().StringVar(&c.Library, "cuda-driver", "", "library of the CUDA driver; without one, the loader finds it")
	cmd.Flags().StringSliceVar(&c.Libraries, "cuda-libraries", nil, "directories with cuBLAS, cuDNN and NCCL, before those where the loader looks")
	cmd.Flags().StringVar(&c.WithoutBLAS, "without-cublas", "", "why cuBLAS is not opened")
	cmd.Flags().StringVar(&c.WithoutDNN, "without-cudnn", "", "why cuDNN is not opened")
	cmd.Flags().StringVar(&c.WithoutNCCL, "without-nccl", "", "why NCCL is not opened")
	return cmd
}

// graphicsArguments are the flags of graphicsFlags that a configuration means.
func (c *config) graphicsArguments() (all []string) {
	if c.CUDADriver != defaultConfig().CUDADriver {
		all = append(all, "--cuda-driver", c.CUDADriver)
	}
	if c.CUDALibraries != "" {
		all = append(all, "--cuda-libraries", strings.Join(c.CUDALibraries.list(), ","))
	}
	return all
}

// configure has a node use what was found of libraries.
func (l *libraries) configure(n *node.Config) { n.OpenGPUs, n.NoGPU = l.open, l.why }

// without are flags by which workers open no library that cannot be used.
func (l *libraries) without() (without []string) {
	for flag, f := range map[string]finding{"--without-cublas": l.blas, "--without-cudnn": l.dnn, "--without-nccl": l.nccl} {
		if f.Error != "" && !f.Absent {
			without = append(without, flag, f.Error)
		}
	}
	return without
}

// tell logs what was found of libraries. Those of a host without GPUs are not missed.
func (l *libraries) tell(log *zap.Logger) {
	for _, f := range l.all() {
		fields := []zap.Field{zap.String("library", f.Library), zap.String("path", f.path())}
		switch {
		case f.Library == "" || len(l.driver.Processors) == 0 && f.Absent:
		case f.Absent:
			log.Info("a library of GPUs is not there; docs/operations.md says what it is for", append(fields, zap.String("found", f.Error))...)
		case f.Error != "":
			log.Warn("a library of GPUs cannot be used; "+withoutIt[f.Library], append(fields, zap.String("found", f.Error))...)
		default:
			log.Info("found a library of GPUs", fields...)
		}
	}
}

// withoutIt is what follows where a library cannot be used.
var withoutIt = map[string]string{
	management:  "the health of GPUs is not known",
	cuda.Driver: "jobs get no GPUs",
	cuda.BLAS:   "slower kernels of our own multiply, by how much `gpu-smoke bench` (bench/gpu) measures",
	cuda.DNN:    "convolutions are matrix products, by how much slower `gpu-smoke bench` (bench/gpu) measures",
	cuda.NCCL:   "boundaries are copied between GPUs in other ways",
}

// why says why jobs can use no GPU, whichever there are.
func (l *libraries) why() string {
	if !cuda.Built {
		return cuda.ErrAbsent.Error()
	}
	return l.driver.Error
}

// open opens what knows the GPUs of this host: NVIDIA's management library, or where it cannot be used the list of the CUDA driver, which says
// nothing of health.
func (l *libraries) open() (gpu.Source, error) {
	unread := l.management.Error
	if unread == "" || !cuda.Built {
		source, err := nvml.Open()
		if !cuda.Built || !errors.Is(err, gpu.ErrNone) {
			return source, err
		}
		unread = err.Error()
	}
	if l.driver.Error != "" {
		return nil, fmt.Errorf("%w: %s", gpu.ErrNone, l.driver.Error)
	}
	return driverSource{gpusOf(l.driver), unread}, nil
}

// start finds the GPUs that jobs may use by a configuration. The caller closes the monitor.
func (l *libraries) start(ctx context.Context, c *config, events gpu.Events, faults gpu.Faults) (*gpu.Monitor, error) {
	m, err := gpu.Start(ctx, gpu.Config{Open: l.open, Select: c.selection(), Events: events, Faults: faults})
	if errors.Is(err, gpu.ErrSelection) {
		return nil, c.explain(&node.KeyError{Key: "gpus", Err: err})
	}
	return m, err
}

// gpusOf are the GPUs that the driver shows.
func gpusOf(driver finding) (all []gpu.GPU) {
	for i, p := range driver.Processors {
		all = append(all, gpu.GPU{
			Index: i, UUID: p.UUID, Name: p.Name, MemoryBytes: p.MemoryBytes, ComputeCapability: p.Capability,
		})
	}
	return all
}

// driverSource is a list of GPUs that nothing more is known of.
type driverSource struct {
	found  []gpu.GPU
	unread string // why
}

// Sample implements gpu.Source.
func (s driverSource) Sample() (all []gpu.Sample, _ []gpu.Failure, _ error) {
	for _, g := range s.found {
		all = append(all, gpu.Sample{GPU: g, Readings: gpu.Readings{Unread: s.unread}})
	}
	return all, nil, nil
}

// WaitXID implements gpu.Source. The driver tells of none.
func (driverSource) WaitXID(bound time.Duration) (*gpu.XID, error) {
	time.Sleep(bound)
	return nil, nil //nolint:nilnil // as it says
}

// Close implements gpu.Source.
func (driverSource) Close() error { return nil }
