//go:build cuda && cgo && linux && amd64

package cuda_test

import (
	"fmt"
	"testing"

	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/device/cuda/cudatest"
)

func TestAttentionIsByTheFormForItsTypeAndWidth(t *testing.T) {
	library := cudatest.Library(t)
	for _, x := range []struct {
		kind device.Type
		s    int
		want string
	}{
		{device.BF16, 16, "attention_64"},
		{device.BF16, 64, "attention_64"},
		{device.BF16, 72, "attention_128"},
		{device.BF16, 128, "attention_128"},
		{device.BF16, 136, "attention"},
		{device.F32, 64, "attention_floats_64"},
		{device.F32, 128, "attention_floats_128"},
		{device.F32, 136, "attention"},
	} {
		t.Run(fmt.Sprintf("%v heads of %d", x.kind, x.s), func(t *testing.T) {
			d := open(t, library)
			defer d.Close()
			defer library.Reset(1 << 30)
			library.Trap(x.want, cudatest.IllegalAddress)
			m, err := d.Alloc(x.kind, x.s)
			if err != nil {
				t.Fatal(err)
			}
			out, err := d.Alloc(x.kind, x.s)
			if err != nil {
				t.Fatal(err)
			}
			d.Do(&device.Attention{Out: out, Q: m, K: m, V: m, AttentionShape: device.AttentionShape{B: 1, T: 1, H: 1, S: x.s}})
			says(t, d.Synchronize(), "Attention")
		})
	}
}
