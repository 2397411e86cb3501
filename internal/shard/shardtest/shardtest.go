// Package shardtest is the conformance suite of shard.Store. A new store inherits it:
//
//	func TestConformance(t *testing.T) {
//		shardtest.Run(t, func(t *testing.T) (shard.Store, shardtest.Damage) { ... })
//	}
package shardtest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/avgpipe/avgpipe/internal/shard"
)

// Damage changes the stored bytes of a shard behind the store's back.
type Damage func(d shard.Digest, change func(data []byte) []byte)

// Run tests a store. open returns an empty one each time.
func Run(t *testing.T, open func(t *testing.T) (shard.Store, Damage)) {
	t.Helper()
	tests := []struct {
		name string
		run  func(t *testing.T, s shard.Store, damage Damage)
	}{
		{"ReadsBackWhatWasWritten", readsBack},
		{"NamesByDigest", namesByDigest},
		{"ReportsEveryDamagedByte", reportsDamage},
		{"WritingAgainHeals", writingAgainHeals},
		{"FailedWriteLeavesNothing", failedWrite},
		{"AbsentShard", absent},
		{"CollectsOlderRounds", collects},
		{"StopsWithItsContext", stops},
		{"WritesConcurrently", concurrent},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			s, damage := open(t)
			test.run(t, s, damage)
		})
	}
}

// Header is a small shard's header.
func Header(round uint64) *shard.Header {
	return &shard.Header{
		Job: "7", Generation: 2, Round: round, Stage: 1, Stages: 3,
		Vectors: []shard.Vector{
			{Name: shard.CenterVector, Elements: 70_001}, // more than one run
			{Name: shard.ParametersVector(0), Elements: 5},
			{Name: shard.StateVector(0, 1), Elements: 0},
		},
		Cursors: []shard.Cursor{{Pipeline: 0, Step: round}},
		Meta:    []byte(`{"data":"x"}`),
	}
}

// element is the content of Header's vectors.
func element(round uint64, v, i int) float32 { return float32(round)*1e6 + float32(v)*1e5 + float32(i) }

func write(t *testing.T, s shard.Store, h *shard.Header) shard.Digest {
	t.Helper()
	d, n, err := shard.Write(t.Context(), s, h, func(v int, dst []float32, offset int) error {
		for i := range dst {
			dst[i] = element(h.Round, v, offset+i)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if verified, err := s.Verify(t.Context(), d); err != nil || verified != n {
		t.Fatalf("verify: %d bytes, expected %d: %v", verified, n, err)
	}
	return d
}

func readsBack(t *testing.T, s shard.Store, _ Damage) {
	t.Helper()
	h := Header(3)
	d := write(t, s, h)
	seen := make([]int, len(h.Vectors))
	err := shard.Read(t.Context(), s, d, func(got *shard.Header) (func(int, []float32, int) error, error) {
		if fmt.Sprint(*got) != fmt.Sprint(*h) {
			return nil, fmt.Errorf("header %+v, expected %+v", got, h)
		}
		return func(v int, src []float32, offset int) error {
			if offset != seen[v] {
				return fmt.Errorf("at %d, expected %d", offset, seen[v])
			}
			for i, x := range src {
				if x != element(3, v, offset+i) {
					return fmt.Errorf("element %d is %v, expected %v", offset+i, x, element(3, v, offset+i))
				}
			}
			seen[v] += len(src)
			return nil
		}, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for v, n := range seen {
		if n != h.Vectors[v].Elements {
			t.Errorf("vector %d: %d elements, expected %d", v, n, h.Vectors[v].Elements)
		}
	}
	refused := errors.New("refused")
	err = shard.Read(t.Context(), s, d, func(*shard.Header) (func(int, []float32, int) error, error) { return nil, refused })
	if !errors.Is(err, refused) || !strings.Contains(err.Error(), string(d)) {
		t.Errorf("a refused header: %v", err)
	}
}

func namesByDigest(t *testing.T, s shard.Store, _ Damage) {
	t.Helper()
	d := write(t, s, Header(1))
	if again := write(t, s, Header(1)); again != d {
		t.Errorf("the same shard is %s and %s", d, again)
	}
	other := write(t, s, Header(2))
	blob, err := s.Open(t.Context(), d)
	if err != nil {
		t.Fatal(err)
	}
	data, err := io.ReadAll(blob)
	if err := errors.Join(err, blob.Close()); err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(data)
	if found := hex.EncodeToString(sum[:]); found != string(d) || int64(len(data)) != blob.Size() {
		t.Errorf("content has digest %s and %d bytes, expected %s and %d", found, len(data), d, blob.Size())
	}
	list, err := s.List(t.Context())
	expected := []shard.Digest{d, other}
	slices.Sort(expected)
	if err != nil || !slices.Equal(list, expected) {
		t.Errorf("list is %v, expected %v: %v", list, expected, err)
	}
	// A copy from another node comes as bytes.
	same, err := s.Write(t.Context(), int64(len(data)), func(w io.Writer) error {
		_, err := io.Copy(w, bytes.NewReader(data))
		return err
	})
	if err != nil || same != d {
		t.Errorf("copy is %s, expected %s: %v", same, d, err)
	}
}

func reportsDamage(t *testing.T, s shard.Store, damage Damage) {
	t.Helper()
	h := Header(1)
	h.Vectors[0].Elements = 200
	d := write(t, s, h)
	expectDamage := func(what string) {
		t.Helper()
		var damaged *shard.DamagedError
		_, err := s.Open(t.Context(), d)
		if !errors.As(err, &damaged) || damaged.Expected != d || damaged.Found == d || damaged.Found == "" ||
			!strings.Contains(err.Error(), damaged.Path) {
			t.Fatalf("%s: error %v", what, err)
		}
		err = shard.Read(t.Context(), s, d, func(*shard.Header) (func(int, []float32, int) error, error) {
			t.Errorf("%s: the header was handed over", what)
			return nil, errors.New("unreachable")
		})
		if !errors.As(err, &damaged) {
			t.Fatalf("%s: ReadShard: %v", what, err)
		}
	}
	size, err := s.Verify(t.Context(), d)
	if err != nil {
		t.Fatal(err)
	}
	for p := range size {
		flip := func(data []byte) []byte { data[p] ^= 4; return data }
		damage(d, flip)
		expectDamage(fmt.Sprintf("byte %d flipped", p))
		damage(d, flip)
	}
	for _, n := range []int64{0, 7, 15, 16, 100, size / 2, size - 1} {
		var whole []byte
		damage(d, func(data []byte) []byte { whole = slices.Clone(data); return data[:n] })
		expectDamage(fmt.Sprintf("cut to %d bytes", n))
		damage(d, func([]byte) []byte { return whole })
	}
	damage(d, func(data []byte) []byte { return append(data, 0) })
	expectDamage("a byte more")
	damage(d, func(data []byte) []byte { return data[:size] })
	if _, err := s.Verify(t.Context(), d); err != nil {
		t.Errorf("repaired: %v", err)
	}
}

func writingAgainHeals(t *testing.T, s shard.Store, damage Damage) {
	t.Helper()
	d := write(t, s, Header(1))
	damage(d, func(data []byte) []byte { return data[:len(data)/2] })
	if again := write(t, s, Header(1)); again != d {
		t.Errorf("written again it is %s, expected %s", again, d)
	}
}

func failedWrite(t *testing.T, s shard.Store, _ Damage) {
	t.Helper()
	fault := errors.New("the device is gone")
	_, _, err := shard.Write(t.Context(), s, Header(9), func(v int, _ []float32, _ int) error {
		if v == 1 {
			return fault
		}
		return nil
	})
	if !errors.Is(err, fault) || !strings.Contains(err.Error(), "job 7 round 9 stage 1") || !strings.Contains(err.Error(), "pipeline.0.parameters") {
		t.Errorf("error %v: expected the cause, the shard and the vector", err)
	}
	for _, announced := range []int64{2, 4} {
		_, err := s.Write(t.Context(), announced, func(w io.Writer) error { _, err := w.Write([]byte("abc")); return err })
		if err == nil || !strings.Contains(err.Error(), "3 bytes were written") {
			t.Errorf("%d bytes announced, 3 written: %v", announced, err)
		}
	}
	bad := Header(1)
	bad.Vectors = append(bad.Vectors, bad.Vectors[0])
	if _, _, err := shard.Write(t.Context(), s, bad, nil); err == nil || !strings.Contains(err.Error(), `"center"`) {
		t.Errorf("a vector twice: %v", err)
	}
	if list, err := s.List(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("list is %v, expected nothing: %v", list, err)
	}
}

func absent(t *testing.T, s shard.Store, _ Damage) {
	t.Helper()
	d := shard.Digest(strings.Repeat("ab", 32))
	if _, err := s.Open(t.Context(), d); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), string(d)) {
		t.Errorf("open: %v", err)
	}
	if _, err := s.Verify(t.Context(), d); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("verify: %v", err)
	}
	if _, err := s.Open(t.Context(), "../../etc/passwd"); err == nil {
		t.Error("a name that is no digest was opened")
	}
}

func collects(t *testing.T, s shard.Store, damage Damage) {
	t.Helper()
	var d []shard.Digest
	for round := range uint64(6) {
		d = append(d, write(t, s, Header(round)))
	}
	damage(d[2], func(data []byte) []byte { return data[:10] })
	removed, err := s.Collect(t.Context(), shard.Collection{Keep: []shard.Digest{d[1]}, Superseded: []shard.Digest{d[1], d[3]}, Before: 4})
	expected := []shard.Digest{d[0], d[2], d[3]}
	slices.Sort(expected)
	slices.Sort(removed)
	if err != nil || !slices.Equal(removed, expected) {
		t.Errorf("removed %v, expected %v: %v", removed, expected, err)
	}
	for _, kept := range []shard.Digest{d[1], d[4], d[5]} {
		if _, err := s.Verify(t.Context(), kept); err != nil {
			t.Errorf("kept: %v", err)
		}
	}
	if removed, err := s.Collect(t.Context(), shard.Collection{Keep: []shard.Digest{d[1]}, Superseded: []shard.Digest{d[1], d[3]}, Before: 4}); err != nil || len(removed) != 0 {
		t.Errorf("once more removed %v: %v", removed, err)
	}
}

func stops(t *testing.T, s shard.Store, _ Damage) {
	t.Helper()
	d := write(t, s, Header(1))
	ctx, cancel := context.WithCancel(t.Context())
	_, _, err := shard.Write(ctx, s, Header(2), func(int, []float32, int) error { cancel(); return nil })
	if !errors.Is(err, context.Canceled) {
		t.Errorf("write: %v", err)
	}
	if _, err := s.Open(ctx, d); !errors.Is(err, context.Canceled) {
		t.Errorf("open: %v", err)
	}
	if _, err := s.List(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("list: %v", err)
	}
	if _, err := s.Collect(ctx, shard.Collection{Before: 9}); !errors.Is(err, context.Canceled) {
		t.Errorf("collect: %v", err)
	}
	if list, err := s.List(t.Context()); err != nil || !slices.Equal(list, []shard.Digest{d}) {
		t.Errorf("list is %v, expected the first alone: %v", list, err)
	}
}

func concurrent(t *testing.T, s shard.Store, _ Damage) {
	t.Helper()
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for round := range uint64(3) {
				_, _, err := shard.Write(t.Context(), s, Header(round), func(v int, dst []float32, offset int) error {
					for i := range dst {
						dst[i] = element(round, v, offset+i)
					}
					return nil
				})
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	list, err := s.List(t.Context())
	if err != nil || len(list) != 3 {
		t.Fatalf("list is %v, expected three shards: %v", list, err)
	}
	for _, d := range list {
		if _, err := s.Verify(t.Context(), d); err != nil {
			t.Error(err)
		}
	}
}
