// Package pick opens a device by name and says why it is that one. One binary falls back at run time: what a job asks for
// is looked up here and nowhere else.
package pick

import (
	"errors"
	"fmt"
	"strings"

	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/device/cpu"
	"github.com/avgpipe/avgpipe/stage/device/cuda"
	"github.com/avgpipe/avgpipe/stage/device/emulated"
	"github.com/avgpipe/avgpipe/stage/device/ref"
)

// Config says which part of the machine a device may use. Devices that have no such setting ignore it.
type Config struct {
	Threads int   // threads of one device; 0 for the device's default
	Cores   []int // processors that the device's executor is pinned to; none for no pinning
	// Emulated is the device to emulate; of that kind only. Where it Computes, it does so on a device of the kind cpu.
	Emulated emulated.Config
	Computes bool
	Graphics cuda.Config // which graphics processor; of the kind gpu only
	// Over wraps a device of the kind cpu or ref, or the one that an emulated device computes on, which is closed with what it returns. Nil: nothing does.
	Over func(on device.Device) (device.Device, error)
}

// wrap is a device with what goes over it. After an error it is closed.
func (c Config) wrap(on device.Device) (device.Device, error) {
	if c.Over == nil {
		return on, nil
	}
	dev, err := c.Over(on)
	if err != nil {
		return nil, errors.Join(err, on.Close())
	}
	return dev, nil
}

// choice is one kind that a job file can name.
type choice struct {
	kind string
	open func(Config) (device.Device, string, error)
	// asked, where opening one takes a part of the machine, is one that only says what it has; else nil.
	asked device.Device
}

// choices lists the kinds of this build in the order in which messages name them.
var choices = append([]choice{
	{"auto", openAuto, nil},
	{"cpu", openCPU, nil},
	{"ref", openRef, nil},
	{"emulated", openEmulated, nil},
}, graphics...)

// Kinds are the names that Open accepts.
func Kinds() []string {
	kinds := make([]string, len(choices))
	for i, c := range choices {
		kinds[i] = c.kind
	}
	return kinds
}

// Open opens a device of kind, "" meaning auto, and returns the reason for the choice in words for the user.
func Open(kind string, c Config) (dev device.Device, reason string, err error) {
	if kind == "" {
		kind = "auto"
	}
	for _, choice := range choices {
		if choice.kind == kind {
			return choice.open(c)
		}
	}
	return nil, "", fmt.Errorf("device %q: expected one of %s", kind, strings.Join(Kinds(), ", "))
}

// Asked returns a device of a kind that is asked what it has, and does not compute. The caller closes it.
func Asked(kind string) (device.Device, error) {
	for _, choice := range choices {
		if choice.kind == kind && choice.asked != nil {
			return choice.asked, nil
		}
	}
	dev, _, err := Open(kind, Config{})
	return dev, err
}

func openAuto(c Config) (device.Device, string, error) {
	dev, reason, err := openCPU(c)
	if err != nil {
		return nil, "", err
	}
	return dev, "auto took " + reason, nil
}

func openCPU(c Config) (device.Device, string, error) {
	on, err := cpu.Open(cpu.Config{Threads: c.Threads, Cores: c.Cores})
	if err != nil {
		return nil, "", err
	}
	dev, err := c.wrap(on)
	if err != nil {
		return nil, "", err
	}
	if missing := cpu.OneDNN(); missing != nil {
		return dev, fmt.Sprintf("%s: %v", dev.Name(), missing), nil
	}
	return dev, dev.Name() + ": the fastest device of this build", nil
}

func openRef(c Config) (device.Device, string, error) {
	dev, err := c.wrap(ref.New())
	if err != nil {
		return nil, "", err
	}
	return dev, dev.Name() + ": asked for by name; results have the same bits on every machine", nil
}

func openEmulated(c Config) (device.Device, string, error) {
	if !c.Computes {
		dev, err := emulated.Open(c.Emulated)
		if err != nil {
			return nil, "", err
		}
		return dev, dev.Name() + ": asked for by name; it computes nothing", nil
	}
	c.Cores = nil // of which there may be fewer than devices
	on, _, err := openCPU(c)
	if err != nil {
		return nil, "", err
	}
	dev, err := emulated.Over(c.Emulated, on)
	if err != nil {
		return nil, "", errors.Join(err, on.Close())
	}
	return dev, dev.Name() + ": asked for by name; its times are those that the job gives, as long as the processor needs less", nil
}
