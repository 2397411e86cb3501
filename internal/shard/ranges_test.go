package shard_test

import (
	"errors"
	"os"
	"slices"
	"testing"

	"github.com/avgpipe/avgpipe/internal/shard"
)

func TestRangesOfAShardAreRead(t *testing.T) {
	store, err := shard.OpenStore(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	a, b := make([]float32, 200_000), make([]float32, 3)
	for i := range a {
		a[i] = float32(i)
	}
	copy(b, []float32{7, 8, 9})
	header := &shard.Header{Job: "1", Stages: 1, Vectors: []shard.Vector{{Name: "a", Elements: len(a)}, {Name: "b", Elements: len(b)}}}
	d, _, err := shard.Write(t.Context(), store, header, [][]float32{a, b})
	if err != nil {
		t.Fatal(err)
	}
	long, short := make([]float32, 150_000), make([]float32, 2)
	err = shard.ReadRanges(t.Context(), store, d, func(*shard.Header) ([]shard.Range, error) {
		return []shard.Range{{Vector: 0, From: 31, Into: long}, {Vector: 1, From: 1, Into: short}}, nil
	})
	if err != nil || !slices.Equal(long, a[31:150_031]) || !slices.Equal(short, b[1:]) {
		t.Errorf("error %v; the short range is %v", err, short)
	}
	for _, bad := range []shard.Range{{Vector: 2}, {Vector: -1}, {From: -1}, {Vector: 1, From: 2, Into: short}} {
		if err := shard.ReadRanges(t.Context(), store, d, func(*shard.Header) ([]shard.Range, error) { return []shard.Range{bad}, nil }); err == nil {
			t.Errorf("range %+v is read", bad)
		}
	}
	text, err := os.ReadFile(store.Path(d))
	if err != nil {
		t.Fatal(err)
	}
	text[len(text)/2] ^= 1
	if err := errors.Join(os.Chmod(store.Path(d), 0o600), os.WriteFile(store.Path(d), text, 0o600)); err != nil {
		t.Fatal(err)
	}
	err = shard.ReadRanges(t.Context(), store, d, func(*shard.Header) ([]shard.Range, error) {
		t.Error("the header of a damaged shard is handed over")
		return nil, nil
	})
	if _, damaged := errors.AsType[*shard.DamagedError](err); !damaged {
		t.Errorf("of a damaged shard: %v", err)
	}
}
