package lint

import (
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestTheUnitOfHostsWithUCX: systemd takes it with its drop-in, which opens the devices of RDMA and no others, and lets UCX ask the kernel for routes; the unit alone
// does neither.
func TestTheUnitOfHostsWithUCX(t *testing.T) {
	requireTool(t, "systemd-analyze")
	unit, more := readAt(t, "../../deploy", "avgpiped.service"), readAt(t, "../../deploy", "avgpiped-ucx.conf")
	for key, want := range map[string]string{"PrivateDevices": "no", "DevicePolicy": "closed", "LimitMEMLOCK": "infinity", "RestrictAddressFamilies": "AF_NETLINK"} {
		if now := setting(t, more, key); now != want {
			t.Errorf("the drop-in says %s=%s, want %s", key, now, want)
		}
		if strings.Contains(unit, key+"="+want+"\n") {
			t.Errorf("the unit alone says %s=%s", key, want)
		}
	}
	if opened := regexp.MustCompile(`(?m)^DeviceAllow=(.*)$`).FindAllString(more, -1); !slices.Equal(opened, []string{"DeviceAllow=char-infiniband_verbs rw"}) {
		t.Errorf("the drop-in opens %q", opened)
	}
	dir := t.TempDir()
	write(t, filepath.Join(dir, "avgpiped.service"), regexp.MustCompile(`(?m)^ExecStart=.*$`).ReplaceAllString(unit, "ExecStart=/bin/true"))
	write(t, filepath.Join(dir, "avgpiped.service.d/ucx.conf"), more)
	if said := run(t, dir, "systemd-analyze", "verify", "--man=no", filepath.Join(dir, "avgpiped.service")); strings.Contains(said, "avgpiped") {
		t.Errorf("systemd-analyze verify: %s", said)
	}
}
