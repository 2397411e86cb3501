package feed

import (
	"strings"
	"testing"
	"unsafe"

	"github.com/avgpipe/avgpipe/stage"
	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/layer"
)

// pair is the input of a classifier of pairs of texts: 3 samples of 5 tokens.
var pair = []layer.Port{
	{Name: "ids", Type: device.I32, Elements: 15},
	{Name: "token_types", Type: device.I32, Elements: 15},
	{Name: "mask", Type: device.I32, Elements: 15},
}

func newFeed(t *testing.T, ports []layer.Port, samples int) Feed {
	t.Helper()
	f, err := New(ports, samples)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestFieldsOfABatchLieWhereTheModelCutsItsPorts(t *testing.T) {
	input, labels := stage.NewBoundary(4*layer.Words(pair)), stage.NewBoundary(4*3)
	b := newFeed(t, pair, 3).Batch(input, labels)
	for i, v := range [][]int32{b.Tokens, b.Types, b.Mask} {
		if len(v) != 15 {
			t.Fatalf("port %s has %d values, want 15", pair[i].Name, len(v))
		}
		for j := range v {
			v[j] = int32(100*i + j)
		}
	}
	words := device.NewMem(unsafe.Pointer(unsafe.SliceData(input)), layer.Words(pair), device.F32)
	for i := range pair {
		cut := layer.Cut(words, pair, i).I32()
		if cut[0] != int32(100*i) || cut[14] != int32(100*i+14) {
			t.Errorf("the model sees %v as %s", cut, pair[i].Name)
		}
	}
	if b.Decoder != nil || b.Pixels != nil || len(b.Targets) != 3 {
		t.Errorf("other fields: decoder %v, pixels %v, targets %v", b.Decoder, b.Pixels, b.Targets)
	}
	b = newFeed(t, []layer.Port{{Name: "pixels", Type: device.F32, Elements: 12}}, 3).Batch(input[:48], nil)
	if len(b.Pixels) != 12 || b.Tokens != nil || b.Targets != nil {
		t.Errorf("an image batch is %+v", b)
	}
}

func TestInputsThatNoDataSetGivesAreRefused(t *testing.T) {
	if _, err := New([]layer.Port{{Name: "sound", Elements: 1}}, 1); err == nil || !strings.Contains(err.Error(), `"sound"`) {
		t.Errorf("error %v", err)
	}
}
