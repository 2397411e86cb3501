package stage

import "github.com/avgpipe/avgpipe/stage/device"

// begin tells a device that spends time instead of computing what comes next.
func (c *Computed) begin(kind device.WorkKind) {
	if e, ok := device.Of[device.Emulator](c.dev); ok {
		again := c.config.Recompute.any() && (kind == device.BackwardWork || kind == device.BackwardInputWork)
		e.Begin(device.Work{Kind: kind, Stage: c.config.Index, Again: again})
	}
}

// keepsValues reports whether what is written to the device can be read again.
func (c *Computed) keepsValues() bool {
	_, emulates := device.Of[device.Emulator](c.dev)
	return !emulates
}
