package node

import (
	"cmp"
	"context"
	"errors"

	"go.uber.org/zap"

	"github.com/avgpipe/avgpipe/internal/gpu"
)

// startGPUs finds the graphics processors that jobs may use, and says what it finds. The caller runs the monitor.
func startGPUs(ctx context.Context, c Config) (*gpu.Monitor, error) {
	m, err := gpu.Start(ctx, gpu.Config{Open: c.OpenGPUs, Select: c.SelectGPUs, Events: gpuEvents(c.Log)})
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
