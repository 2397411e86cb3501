package lint

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestTheUnitOfHostsWithGPUs: systemd takes it with its drop-in, which opens the devices of GPUs and no others; the unit alone opens none.
func TestTheUnitOfHostsWithGPUs(t *testing.T) {
	requireTool(t, "systemd-analyze")
	unit, err := os.ReadFile("../../deploy/avgpiped.service")
	if err != nil {
		t.Fatal(err)
	}
	more, err := os.ReadFile("../../deploy/avgpiped-gpu.conf")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(unit), "\nPrivateDevices=yes\n") || strings.Contains(string(unit), "DeviceAllow=") {
		t.Error("the unit gives hosts without GPUs more than a /dev of their own")
	}
	if !strings.Contains(string(more), "\nDevicePolicy=closed\n") {
		t.Error("the drop-in leaves devices open")
	}
	for _, allowed := range regexp.MustCompile(`(?m)^DeviceAllow=(.*)$`).FindAllStringSubmatch(string(more), -1) {
		if !regexp.MustCompile(`^(/dev/nvidia|char-nvidia)[a-z-]* rw$`).MatchString(allowed[1]) {
			t.Errorf("the drop-in opens %s", allowed[1])
		}
	}
	dir := t.TempDir()
	here := regexp.MustCompile(`(?m)^ExecStart=.*$`).ReplaceAllString(string(unit), "ExecStart=/bin/true")
	write(t, filepath.Join(dir, "avgpiped.service"), here)
	write(t, filepath.Join(dir, "avgpiped.service.d/gpu.conf"), string(more))
	if said := run(t, dir, "systemd-analyze", "verify", "--man=no", filepath.Join(dir, "avgpiped.service")); strings.Contains(said, "avgpiped.service") {
		t.Errorf("systemd-analyze verify: %s", said)
	}
}
