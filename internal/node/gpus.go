package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	"go.uber.org/zap"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/checkpoint"
	"github.com/avgpipe/avgpipe/internal/gpu"
	"github.com/avgpipe/avgpipe/internal/server"
)

// startGPUs finds the graphics processors that jobs may use, and says what it finds. The caller runs the monitor.
func startGPUs(ctx context.Context, c Config) (*gpu.Monitor, error) {
	events := gpuEvents(c.Log)
	boot, err := c.BootID()
	if err != nil {
		return nil, err
	}
	events.Faults = func(all gpu.Faults) {
		if err := checkpoint.WriteRecord(faultsPath(c.StateDir), faultsKind, faultsVersion, keptFaults{boot, all}, 0o640); err != nil {
			c.Log.Error("the errors of GPUs are not kept; a sick one will be healthy after a restart of the daemon", zap.Error(err))
		}
	}
	m, err := gpu.Start(ctx, gpu.Config{Open: c.OpenGPUs, Select: c.SelectGPUs, Events: events, Faults: readFaults(c, boot)})
	if err != nil {
		return nil, keyError("gpus", err, gpu.ErrSelection)
	}
	if hidden := m.Hidden(); hidden != "" {
		c.Log.Info("some GPUs are hidden from jobs", zap.String("by", hidden))
	}
	for _, g := range m.GPUs() {
		c.Log.Info("found a GPU", append(gpuFields(g), zap.String("health", g.Health.String()))...)
	}
	return m, nil
}

// noGPU says why jobs can use no GPU, whichever there are; "": they can.
func (n *node) noGPU() string {
	if len(n.gpus.GPUs()) == 0 {
		return cmp.Or(n.config.NoGPU(), n.gpus.Hidden())
	}
	return n.config.NoGPU()
}

func gpuFields(g gpu.GPU) []zap.Field {
	return []zap.Field{zap.Int("gpu", g.Index), zap.String("uuid", g.UUID), zap.String("name", g.Name)}
}

// gpuEvents logs what happens to graphics processors.
func gpuEvents(log *zap.Logger) gpu.Events {
	return gpu.Events{
		Health: func(g gpu.GPU, before gpu.Health) {
			fields := append(gpuFields(g), zap.String("health", g.Health.String()), zap.String("before", before.String()))
			switch g.Health.Level {
			case gpu.Healthy:
				log.Info("a GPU is healthy again", fields...)
			case gpu.Unknown:
				log.Warn("the health of a GPU is not known; it gets stages", fields...)
			case gpu.Degraded:
				log.Warn("a GPU is degraded", fields...)
			case gpu.Sick:
				log.Error("a GPU is sick; it gets no stages", fields...)
			}
		},
		XID: func(g gpu.GPU, x gpu.XID) {
			log.Warn("the driver of the GPUs reported an error", append(gpuFields(g), zap.Uint64("xid", x.Code), zap.Int("count", x.Count), zap.Bool("of_the_application", x.Unhurt()))...)
		},
		Failure: func(f gpu.Failure) {
			if errors.Is(f.Err, gpu.ErrNone) {
				log.Info("there are no GPUs", zap.Error(f.Err))
				return
			}
			log.Warn("the driver of the GPUs fails; this is said once", zap.String("call", f.Call), zap.Error(f.Err))
		},
	}
}

// keptFaults is the record of what XIDs said of GPUs.
type keptFaults struct {
	Boot string     `json:"boot"` // of the host, as its kernel names it: the next boot resets all GPUs
	GPUs gpu.Faults `json:"gpus"`
}

const (
	faultsKind    = "gpus"
	faultsVersion = 1
)

func faultsPath(state string) string { return filepath.Join(state, "gpus") }

// readFaults returns what is kept of this boot. A record that is damaged keeps no daemon, and no job of the CPU, from going on.
func readFaults(c Config, boot string) gpu.Faults {
	kept, err := faultsOf(c.StateDir, boot)
	if err != nil {
		c.Log.Error("the errors that were kept of GPUs are lost; reset GPUs that were sick", zap.Error(err))
	}
	return kept
}

// KeptFaults returns what the daemon of a state directory keeps of this boot of the host.
func KeptFaults(state string) (gpu.Faults, error) {
	boot, err := bootID()
	if err != nil {
		return nil, err
	}
	return faultsOf(state, boot)
}

func faultsOf(state, boot string) (gpu.Faults, error) {
	var kept keptFaults
	err := checkpoint.ReadRecord(faultsPath(state), faultsKind, faultsVersion, &kept)
	if errors.Is(err, fs.ErrNotExist) || err == nil && kept.Boot != boot {
		return nil, nil //nolint:nilnil // none are kept
	}
	return kept.GPUs, err
}

// bootID is what the kernel calls this boot of the host.
func bootID() (string, error) {
	text, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("ask the kernel which boot of the host this is: %w", err)
	}
	return strings.TrimSpace(string(text)), nil
}

func (n *node) ClearGPU(ctx context.Context, ref string, by server.Peer) ([]api.NodeStatus, error) {
	err := n.gpus.Clear(ctx, ref)
	switch {
	case errors.Is(err, gpu.ErrNoFault):
		return nil, api.Errorf(http.StatusConflict, "clear GPU %s: %v", ref, err)
	case err != nil:
		return nil, fmt.Errorf("clear GPU %s: %w", ref, err)
	}
	n.log.Info("the errors of a GPU were cleared", zap.String("gpu", ref), zap.String("user", by.String()))
	return n.Nodes(ctx)
}
