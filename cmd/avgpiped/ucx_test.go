package main

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/avgpipe/avgpipe/internal/node"
)

func TestNamesOfUCXDevices(t *testing.T) {
	for text, want := range map[string]bool{
		"eth1": true, "eth1,mlx5_0:1": true, "enp0s1f0np0.100": true,
		"all": false, "": false, "eth1,": false, "eth1, eth2": false, "mlx5_0:": false, "../eth1": false, "eth1,all": false, "^eth0": false,
	} {
		var d ucxDevices
		if got := d.Set(text); got != want || got && string(d) != text {
			t.Errorf("ucx_devices: %q: taken is %v, expected %v", text, got, want)
		}
	}
}

func TestUCXDevicesThatAreNotThereAreNamed(t *testing.T) {
	sys := t.TempDir()
	for _, dir := range []string{"class/net/eth1", "class/infiniband/mlx5_0"} {
		if err := os.MkdirAll(filepath.Join(sys, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if got := ucxDevices("eth1,mlx5_0:1,eth2,mlx5_1:1").missing(sys); !slices.Equal(got, []string{"eth2", "mlx5_1:1"}) {
		t.Errorf("missing are %q, expected eth2 and mlx5_1:1", got)
	}
	if got := ucxDevices("").missing(sys); got != nil {
		t.Errorf("of none are missing %q", got)
	}
}

func TestUCXDevicesNeedAProgramWithUCX(t *testing.T) {
	if err := ucxDevices("eth1").check(true); err != nil {
		t.Error(err)
	}
	if err := ucxDevices("").check(false); err != nil {
		t.Error(err)
	}
	var key *node.KeyError
	if err := ucxDevices("eth1").check(false); !errors.As(err, &key) || key.Key != "ucx_devices" {
		t.Errorf("devices without UCX: %v, expected an error of the key", err)
	}
}
