//go:build cuda && cgo && linux && amd64

package cuda_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/device/cuda/cudatest"
)

// The driver of the test finds each kernel by its name in the image that it was given.
func TestAProcessorGetsTheKernelsThatWereCompiledForIt(t *testing.T) {
	library := cudatest.Library(t)
	for _, x := range []struct {
		major   int
		refuses bool
		want    string
		loads   int
	}{
		{8, false, "kernels for sm_80", 1},
		{9, false, "kernels for sm_90", 1},
		{9, true, "kernels compiled by the driver", 2},
		{12, false, "kernels compiled by the driver", 1},
	} {
		t.Run(fmt.Sprintf("%d.0 refuses %v", x.major, x.refuses), func(t *testing.T) {
			library.Reset(1 << 30)
			library.Capability(x.major)
			if x.refuses {
				library.RefuseBinaries()
			}
			d := open(t, library)
			defer d.Close()
			if !strings.Contains(d.Name(), x.want) {
				t.Errorf("the device is %s, expected %s", d.Name(), x.want)
			}
			if got := library.Calls("cuModuleLoadData"); got != x.loads {
				t.Errorf("%d images were loaded, expected %d", got, x.loads)
			}
			m := alloc(t, d, 8)
			d.Do(&device.Scale{X: m, A: 2})
			if err := d.Synchronize(); err != nil {
				t.Error(err)
			}
		})
	}
}
