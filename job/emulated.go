package job

import (
	"fmt"
	"slices"
	"time"
)

// KindEmulated is the kind of device that Emulated describes.
const KindEmulated = "emulated"

// At is entry i of a list with an entry for each stage or device, or the one that stands for all; the zero value of an empty
// list.
func At[T any](list []T, i int) (value T) {
	switch len(list) {
	case 0:
		return value
	case 1:
		return list[0]
	}
	return list[i]
}

// given reports whether a list says anything but 0.
func given[T float64 | time.Duration](list []T) bool {
	return slices.ContainsFunc(list, func(x T) bool { return x != 0 })
}

// faults checks that what is said of emulated devices is read, and enough.
func (d Devices) faults(has func(string) bool) []fault {
	e := d.Emulated
	timed := given(e.FLOPs) || given(e.Forward)
	switch {
	case d.Kind != KindEmulated && has != nil && has("devices.emulated"):
		return []fault{{
			key: "devices.emulated", message: "devices.emulated is read by the kind emulated only; devices.kind is " + d.Kind,
		}}
	case d.Kind == KindEmulated && !timed:
		return []fault{{
			key:     "devices.kind",
			message: "devices.kind is emulated and neither devices.emulated.flops nor devices.emulated.forward is set; a pass would take no time",
		}}
	case d.Kind == KindEmulated && !given(e.Forward) && (given(e.Backward) || given(e.Step)):
		return []fault{{
			key:     "devices.emulated",
			message: "devices.emulated.forward is not set beside backward or step; give it, or flops alone",
		}}
	}
	return nil
}

// CheckEntries reports the first list that does not have an entry for each of so many stages, or devices: its key and what is
// wrong. "" when all fit.
func (j *Job) CheckEntries(stages, devices int) (key, message string) {
	e := j.Devices.Emulated
	for _, list := range []struct {
		key        string
		have, want int
		what       string
	}{
		{"recompute", len(j.Recompute), stages, "stages"},
		{"devices.emulated.forward", len(e.Forward), stages, "stages"},
		{"devices.emulated.backward", len(e.Backward), stages, "stages"},
		{"devices.emulated.step", len(e.Step), stages, "stages"},
		{"devices.emulated.flops", len(e.FLOPs), devices, "devices"},
		{"devices.emulated.bandwidth", len(e.Bandwidth), devices, "devices"},
		{"devices.emulated.memory", len(e.Memory), devices, "devices"},
		{"devices.emulated.link.latency", len(e.Link.Latency), devices, "devices"},
		{"devices.emulated.link.bandwidth", len(e.Link.Bandwidth), devices, "devices"},
	} {
		if list.have > 1 && list.have != list.want {
			return list.key, fmt.Sprintf("%s has entries for %d %s, and there are %d; a value alone stands for all",
				list.key, list.have, list.what, list.want)
		}
	}
	return "", ""
}
