package job

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

func TestEmulatedDevices(t *testing.T) {
	set := []string{
		"devices.kind=emulated", "devices.emulated.forward=10ms", "devices.emulated.backward=[20ms, 0.5ms]",
		"devices.emulated.memory=16e9", "devices.emulated.link={latency: 5ms, bandwidth: [1e9, 2e9]}",
	}
	j, _, err := Parse("job.yaml", []byte(shortest), set, environment)
	if err != nil {
		t.Fatal(err)
	}
	e := j.Devices.Emulated
	found := fmt.Sprint(At(e.Forward, 1), At(e.Backward, 0), At(e.Backward, 1), At(e.Step, 5), At(e.Memory, 3), At(e.FLOPs, 0),
		At(e.Link.Latency, 1), At(e.Link.Bandwidth, 1), At([]time.Duration(nil), 4))
	if want := "10ms 20ms 500µs 0s 1.6e+10 0 5ms 2e+09 0s"; found != want {
		t.Errorf("found %s, want %s", found, want)
	}
	for _, tt := range []struct {
		stages, devices int
		key             string
	}{
		{2, 2, ""},
		{3, 2, "devices.emulated.backward"},
		{2, 3, "devices.emulated.link.bandwidth"},
	} {
		key, message := j.CheckEntries(tt.stages, tt.devices)
		if key != tt.key || (key == "") != (message == "") {
			t.Errorf("%d stages on %d devices: %q %q, want %q", tt.stages, tt.devices, key, message, tt.key)
		}
	}
}

func TestEmulatedDevicesThatAreNotReadOrNotTimed(t *testing.T) {
	for want, set := range map[string][]string{
		"devices.emulated is read by the kind emulated only; devices.kind is auto": {"devices.emulated.flops=1e12"},
		"neither devices.emulated.flops nor devices.emulated.forward is set":       {"devices.kind=emulated"},
		"devices.emulated.forward is not set beside backward or step": {
			"devices.kind=emulated", "devices.emulated.flops=1e12", "devices.emulated.step=1ms",
		},
		"devices.emulated is read by the kind emulated only; devices.kind is cpu":                       {"devices.kind=cpu", "devices.emulated.compute=true"},
		"neither devices.emulated.flops nor devices.emulated.forward is set; a pass would take no time": {"devices.kind=emulated", "devices.emulated.compute=true"},
		"devices.emulated.forward is 0 for stage 1, devices.emulated.compute is true and no flops are set": {
			"devices.kind=emulated", "devices.emulated.compute=true", "devices.emulated.forward=[1ms, 0]",
		},
		"devices.emulated.forward wants a duration in h, m, s and ms, such as 90s, 5m or 1h30m, or 0, or a list with one of them for each stage; found 10": {
			"devices.kind=emulated", "devices.emulated.forward=10",
		},
		"devices.emulated.flops wants a number of at least 0, or a list with one of them for each device; found -1": {
			"devices.kind=emulated", "devices.emulated.flops=-1",
		},
		"nearest: 80000000000": {"devices.gpu.memory=80GB"},
		"nearest: 85899345920": {"devices.gpu.memory=80 GiB"},
		"devices.gpu and devices.cpu are both given, and devices.kind auto would read one of them alone": {"devices.gpu.count=1", "devices.cpu.threads=2"},
		"devices.gpu.tf32 rounds products of f32, and precision is bf16":                                 {"devices.kind=gpu", "devices.gpu.tf32=true", "precision=bf16"},
		"devices.gpu is read by the kinds gpu and auto only; devices.kind is cpu":                        {"devices.kind=cpu", "devices.gpu.count=1"},
		"devices.emulated.flops[1] wants a number of at least 0; found -1":                               {"devices.kind=emulated", "devices.emulated.flops=[1, -1]"},
	} {
		_, _, err := Parse("job.yaml", []byte(shortest), set, environment)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: error %v, want %q", set, err, want)
		}
	}
}
