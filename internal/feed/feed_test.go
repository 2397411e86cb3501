package feed

import (
	"slices"
	"strings"
	"testing"
	"unsafe"

	"github.com/avgpipe/avgpipe/internal/data"
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

func TestSamplesThatFillUpAMicroBatchDoNotCount(t *testing.T) {
	f := newFeed(t, pair, 3)
	b := f.Batch(stage.NewBoundary(4*layer.Words(pair)), stage.NewBoundary(4*3))
	part := f.First(b, 2)
	if len(part.Tokens) != 10 || len(part.Mask) != 10 || len(part.Targets) != 2 {
		t.Fatalf("2 of 3 samples have %d tokens and %d targets", len(part.Tokens), len(part.Targets))
	}
	for i := range part.Tokens {
		part.Tokens[i], part.Mask[i] = int32(i+1), 1
	}
	copy(part.Targets, []int32{4, 5})
	f.Pad(b, 2)
	if want := []int32{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 1, 2, 3, 4, 5}; !slices.Equal(b.Tokens, want) {
		t.Errorf("tokens %v, want %v", b.Tokens, want)
	}
	if slices.Contains(b.Mask, 0) || !slices.Equal(b.Targets, []int32{4, 5, data.Ignored}) {
		t.Errorf("mask %v, targets %v", b.Mask, b.Targets)
	}
}

func TestInputsThatNoDataSetGivesAreRefused(t *testing.T) {
	if _, err := New([]layer.Port{{Name: "sound", Elements: 1}}, 1); err == nil || !strings.Contains(err.Error(), `"sound"`) {
		t.Errorf("error %v", err)
	}
}
