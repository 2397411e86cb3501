//go:build cuda && cgo && linux && amd64

package cuda_test

import (
	"reflect"
	"testing"

	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/device/cuda/cudatest"
	"github.com/avgpipe/avgpipe/stage/device/ref"
)

// More rows than a block looks through at once, of which most have one id, and a table of more ids than there are blocks.
func TestEmbeddingsAddUpInTheOrderOfTheRows(t *testing.T) {
	const rows, width, table = 2*2048 + 77, 3, 1030
	ids, gradients := make([]int32, rows), make([]float32, rows*width)
	for i := range ids {
		ids[i] = 1025
		if i%3 == 0 {
			ids[i] = int32(i*i) % table
		}
	}
	for i := range gradients {
		gradients[i] = float32(i*i%1009)/1009 - 0.5
	}
	sums := func(d device.Device) []float32 {
		dout, in, dtokens := alloc(t, d, rows*width), alloc(t, d, rows).As(device.I32, rows), alloc(t, d, table*width)
		d.Upload(dout, device.FloatBytes(gradients))
		d.Upload(in, device.IntBytes(ids))
		d.Do(&device.EmbedBackward{DTokens: dtokens, DOut: dout, IDs: in, T: rows})
		got := make([]float32, table*width)
		if err := device.Read(d, device.FloatBytes(got), dtokens); err != nil {
			t.Fatal(err)
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
		return got
	}
	if got, want := sums(open(t, cudatest.Library(t))), sums(ref.New()); !reflect.DeepEqual(got, want) {
		t.Error("the sums are others than those of package ref")
	}
}
