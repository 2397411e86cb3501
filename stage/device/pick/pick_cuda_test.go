//go:build cuda && cgo && linux && amd64

package pick

import (
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/stage/device/cuda"
	"github.com/avgpipe/avgpipe/stage/device/cuda/cudatest"
)

func TestAMachineWithoutADriverSaysSo(t *testing.T) {
	_, _, err := Open("gpu", Config{Graphics: cuda.Config{Library: "no/libcuda.so.1"}})
	if err == nil || !strings.HasPrefix(err.Error(), "no CUDA device: no/libcuda.so.1: not found") {
		t.Errorf("open a device: %v", err)
	}
	namesDeviceAndReason(t, "gpu", Config{Graphics: cuda.Config{Library: cudatest.Library(t).Path(), OwnProducts: true}})
}
