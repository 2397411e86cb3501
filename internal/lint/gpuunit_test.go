package lint

import (
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestTheUnitOfHostsWithGPUs: systemd takes it with its drop-in, which opens the devices of GPUs and no others; the unit alone opens none. The
// drop-in names devices by their driver, and a unit of its own makes them before: systemd looks DeviceAllow= up before it runs ExecStartPre=.
func TestTheUnitOfHostsWithGPUs(t *testing.T) {
	requireTool(t, "systemd-analyze")
	unit, more, devices := readAt(t, "../../deploy", "avgpiped.service"), readAt(t, "../../deploy", "avgpiped-gpu.conf"), readAt(t, "../../deploy", "avgpiped-gpu-devices.service")
	if !strings.Contains(unit, "\nPrivateDevices=yes\n") || strings.Contains(unit, "DeviceAllow=") {
		t.Error("the unit gives hosts without GPUs more than a /dev of their own")
	}
	if strings.Contains(more, "ExecStart") {
		t.Error("the drop-in runs a program, which finds the devices closed")
	}
	for key, want := range map[string]string{
		"DevicePolicy": "closed", "Wants": "avgpiped-gpu-devices.service", "After": "avgpiped-gpu-devices.service nvidia-persistenced.service nvidia-fabricmanager.service",
		"RestrictAddressFamilies": "AF_NETLINK",
	} {
		if now := setting(t, more, key); now != want {
			t.Errorf("the drop-in says %s=%s, want %s", key, now, want)
		}
	}
	var opened []string
	for _, allowed := range regexp.MustCompile(`(?m)^DeviceAllow=(.*)$`).FindAllStringSubmatch(more, -1) {
		opened = append(opened, allowed[1])
	}
	if want := []string{"char-nvidia-frontend rw", "char-nvidia rw", "char-nvidiactl rw", "char-nvidia-uvm rw", "char-nvidia-caps rw"}; !slices.Equal(opened, want) {
		t.Errorf("the drop-in opens %q, want %q", opened, want)
	}
	if setting(t, devices, "Type") != "oneshot" || setting(t, devices, "TimeoutStartSec") == "infinity" {
		t.Error("the daemon does not wait for the devices of GPUs, or waits for ever")
	}
	dir := t.TempDir()
	start := regexp.MustCompile(`(?m)^ExecStart=.*$`)
	write(t, filepath.Join(dir, "avgpiped.service"), start.ReplaceAllString(unit, "ExecStart=/bin/true"))
	write(t, filepath.Join(dir, "avgpiped.service.d/gpu.conf"), more)
	write(t, filepath.Join(dir, "avgpiped-gpu-devices.service"), start.ReplaceAllString(devices, "ExecStart=/bin/true"))
	said := run(t, dir, "systemd-analyze", "verify", "--man=no", filepath.Join(dir, "avgpiped.service"), filepath.Join(dir, "avgpiped-gpu-devices.service"))
	if strings.Contains(said, "avgpiped") {
		t.Errorf("systemd-analyze verify: %s", said)
	}
}
