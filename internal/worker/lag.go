package worker

import (
	"fmt"
	"slices"
	"time"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/worker/control"
	"github.com/avgpipe/avgpipe/stage/device"
)

// lag is how late the emulated device of a stage has been so far, and the frames that came to it; false: the device is not emulated. What
// stages on one device are late for is the device's.
func (h *host) lag(s *hosted) (time.Duration, bool) {
	e, emulates := device.Of[device.Emulator](s.on.Device)
	if !emulates {
		return 0, false
	}
	return e.Lag() + h.network.Late(s.on.row), true
}

// lags are those of all stages here, in their order; 0 of devices that are not emulated.
func (h *host) lags() (all []time.Duration) {
	for i := range h.stages {
		late, _ := h.lag(&h.stages[i])
		all = append(all, late)
	}
	return all
}

// sayLag notes at the end of training that the devices were late for more than counts as theirs.
func (t *trainer) sayLag(h *host) {
	if note := lagNote(h.stages, t.progress.lag(h.lags(), time.Now())); note != "" {
		t.events.Append(control.Event{Kind: control.Note, Text: note})
		t.log.Warn(note)
	}
}

// lagNote says which device was late for most of the time, given the shares of all stages; "" where that is not worth a word.
func lagNote(stages []hosted, shares []float64) string {
	if len(shares) == 0 || slices.Max(shares) <= api.LagBound {
		return ""
	}
	most := slices.Index(shares, slices.Max(shares))
	return fmt.Sprintf("the times are not those of the devices that the job emulates: the one of stage %d was late for %.1f%% of the training time, and %.0f%% count as none",
		stages[most].index, 100*shares[most], 100*api.LagBound)
}
