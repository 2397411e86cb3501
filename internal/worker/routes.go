package worker

import (
	"fmt"

	"go.uber.org/zap"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/pipeline"
	"github.com/avgpipe/avgpipe/stage/device/cuda"
)

// copies reports whether boundaries between two rows of the plan are copied from the memory of a GPU here to that of another.
func (h *host) copies(row, other int) bool {
	a, b := h.deviceOf(row), h.deviceOf(other)
	return a != nil && b != nil && cuda.Apart(a.Device, b.Device)
}

// transports opens the ways to copy between two GPUs, of rows of the plan.
func (h *host) transports(from, to, bytes int) (all []pipeline.Transport) {
	found, err := cuda.Transports(h.deviceOf(from).Device, h.deviceOf(to).Device, h.graphics, bytes)
	if err != nil && h.log != nil {
		h.log.Warn("a way to copy between two GPUs is left out", zap.Error(err))
	}
	for _, t := range found {
		all = append(all, t)
	}
	return all
}

// routed notes and logs how boundaries cross between two GPUs.
func (t *trainer) routed(r pipeline.RouteReport) {
	t.progress.routed(r)
	var measured []string
	for _, m := range r.Measured {
		speed := perSecond(m.BytesPerSecond)
		if m.Failed != nil {
			speed = m.Failed.Error()
		}
		measured = append(measured, m.Transport+": "+speed)
	}
	fields := []zap.Field{
		zap.Int("from_stage", r.From), zap.Int("to_stage", r.To), zap.String("transport", r.Transport), zap.Int("bytes", r.Bytes),
		zap.String("speed", perSecond(r.BytesPerSecond)), zap.Strings("measured", measured),
	}
	if r.Failed != nil {
		t.log.Warn("a way to copy between two GPUs has failed; boundaries go another way", append(fields, zap.Error(r.Failed))...)
		return
	}
	t.log.Info("boundaries are copied from GPU to GPU", fields...)
}

func perSecond(bytes float64) string { return fmt.Sprintf("%.3g GB/s", bytes/1e9) }

// routed notes how boundaries cross.
func (p *progress) routed(r pipeline.RouteReport) {
	w := way{r.From, down}
	if r.To < r.From {
		w = way{r.To, up}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.routes[w] = &api.TransportStatus{Name: r.Transport, BytesPerS: r.BytesPerSecond}
}
