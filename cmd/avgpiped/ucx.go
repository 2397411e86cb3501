package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"go.uber.org/zap"

	"github.com/avgpipe/avgpipe/internal/node"
)

// ucxDevices are network devices as UCX names them: eth1 of the kernel, mlx5_0:1 of RDMA. Empty: none.
type ucxDevices string

var ucxDevice = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*(:[0-9]+)?$`)

// Wants implements strictyaml.Value.
func (*ucxDevices) Wants() string {
	return "names of network devices as UCX has them, such as eth1,mlx5_0:1"
}

// Set implements strictyaml.Value.
func (d *ucxDevices) Set(text string) bool {
	for name := range strings.SplitSeq(text, ",") {
		if !ucxDevice.MatchString(name) || name == "all" { // which would be every network, trusted or not
			return false
		}
	}
	*d = ucxDevices(text)
	return true
}

// check refuses devices in a program that has no UCX.
func (d ucxDevices) check(built bool) error {
	if d != "" && !built {
		return &node.KeyError{Key: "ucx_devices", Err: errors.New("ucx_devices: this program was built without UCX: `make ucx` builds one that has it, or set it to none")}
	}
	return nil
}

// missing are those that are not below sys, where the kernel shows them.
func (d ucxDevices) missing(sys string) (names []string) {
	if d == "" {
		return nil
	}
	for name := range strings.SplitSeq(string(d), ",") {
		device, _, _ := strings.Cut(name, ":")
		there := false
		for _, class := range []string{"net", "infiniband"} {
			_, err := os.Stat(filepath.Join(sys, "class", class, device))
			there = there || err == nil
		}
		if !there {
			names = append(names, name)
		}
	}
	return names
}

// announce logs what is allowed, and what is not there: it may yet come, so that the start does not fail.
func (d ucxDevices) announce(log *zap.Logger) {
	if d == "" {
		return
	}
	log.Info("links may go over UCX, unencrypted, where that is faster than TLS", zap.String("ucx_devices", string(d)))
	for _, name := range d.missing("/sys") {
		log.Warn(fmt.Sprintf("ucx_devices: there is no network device %s now: links do not go over it", name))
	}
}
