package stage

import "github.com/avgpipe/avgpipe/stage/device"

// begin tells a device whose times are dictated what comes next.
func (c *Computed) begin(kind device.WorkKind) {
	if e, ok := device.Of[device.Emulator](c.dev); ok {
		again := c.config.Recompute.any() && (kind == device.BackwardWork || kind == device.BackwardInputWork)
		e.Begin(device.Work{Kind: kind, Stage: c.config.Index, Again: again})
	}
}
