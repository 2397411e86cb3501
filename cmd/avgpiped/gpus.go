package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"github.com/avgpipe/avgpipe/internal/gpu"
	"github.com/avgpipe/avgpipe/internal/gpu/nvml"
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

// graphicsFlags gives a verb flags that say where the libraries of GPUs are. The daemon passes its configuration on so: its processes do
// not read the file.
func graphicsFlags(cmd *cobra.Command, c *cuda.Config) *cobra.Command {
	c.Launches = cuda.Launches(os.Getenv("AVGPIPED_CUDA_LAUNCHES")) // of the daemon, whose environment its processes have
	cmd.Flags().StringVar(&c.Library, "cuda-driver", "", "library of the CUDA driver; without one, the loader finds it")
	cmd.Flags().StringSliceVar(&c.Libraries, "cuda-libraries", nil, "directories with cuBLAS and cuDNN, before those where the loader looks")
	return cmd
}

// graphicsArguments are the flags of graphicsFlags that a configuration means.
func (c *config) graphicsArguments() (all []string) {
	if c.CUDADriver != defaultConfig().CUDADriver {
		all = append(all, "--cuda-driver", c.CUDADriver)
	}
	if c.CUDALibraries != "" {
		all = append(all, "--cuda-libraries", strings.ReplaceAll(string(c.CUDALibraries), ":", ","))
	}
	return all
}

// newGPUsCommand prints the GPUs that the CUDA driver shows, as JSON.
func newGPUsCommand() *cobra.Command {
	var c cuda.Config
	return graphicsFlags(hidden("gpus", "List the GPUs that the CUDA driver shows", func(cmd *cobra.Command) error {
		found, err := cuda.Processors(c)
		if err != nil {
			return err
		}
		all := []gpu.GPU{}
		for i, p := range found {
			all = append(all, gpu.GPU{
				Index: i, UUID: p.UUID, Name: p.Name, MemoryBytes: p.MemoryBytes, ComputeCapability: p.Capability,
				Health: gpu.Health{Level: gpu.Healthy, Reasons: []gpu.Reason{}},
			})
		}
		return json.NewEncoder(cmd.OutOrStdout()).Encode(all)
	}), &c)
}

// gpuSource knows the GPUs of this host: NVIDIA's management library does, or where there is none the CUDA driver, which says nothing of health.
type gpuSource struct {
	self   string // this program
	config *config
	found  []gpu.Sample
	none   atomic.Pointer[string] // why there are none
}

// open opens the source.
func (s *gpuSource) open() (gpu.Source, error) {
	source, err := nvml.Open()
	if !cuda.Built || !errors.Is(err, gpu.ErrNone) {
		return source, err
	}
	if err := s.ask(); err != nil {
		text := err.Error()
		s.none.Store(&text)
		return nil, fmt.Errorf("%w: %w", gpu.ErrNone, err)
	}
	return s, nil
}

// why says why jobs can use no GPU, whichever there are.
func (s *gpuSource) why() string {
	if text := s.none.Load(); cuda.Built && text != nil {
		return *text
	}
	if cuda.Built {
		return ""
	}
	return cuda.ErrAbsent.Error()
}

// ask has a process of its own ask the driver which GPUs there are: a driver that fails takes no daemon with it.
func (s *gpuSource) ask() error {
	cmd := exec.Command(s.self, append([]string{"gpus"}, s.config.graphicsArguments()...)...) //nolint:noctx // it ends by itself
	out, err := cmd.Output()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		line, _, _ := strings.Cut(string(exit.Stderr), "\n")
		return errors.New(strings.TrimPrefix(line, "avgpiped: "))
	}
	var all []gpu.GPU
	if err == nil {
		err = json.Unmarshal(out, &all)
	}
	if err != nil {
		return fmt.Errorf("ask the CUDA driver for GPUs: %w", err)
	}
	for _, g := range all {
		s.found = append(s.found, gpu.Sample{GPU: g})
	}
	return nil
}

// Sample implements gpu.Source.
func (s *gpuSource) Sample() ([]gpu.Sample, []gpu.Failure, error) { return s.found, nil, nil }

// WaitXID implements gpu.Source. The driver tells of none.
func (s *gpuSource) WaitXID(bound time.Duration) (*gpu.XID, error) {
	time.Sleep(bound)
	return nil, nil //nolint:nilnil // as it says
}

// Close implements gpu.Source.
func (s *gpuSource) Close() error { return nil }
