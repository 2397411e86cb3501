package foreign

import (
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"unsafe"
)

// TestAllocationsShareNoMemory, large ones no page either, whatever was freed before; and all of them are zero.
func TestAllocationsShareNoMemory(t *testing.T) {
	a, err := newArena(1 << 26)
	if err != nil {
		t.Fatal(err)
	}
	r := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // of a test
	type block struct {
		span
		at unsafe.Pointer
	}
	var all []block
	reused := 0
	for range 2000 {
		if len(all) > 40 || len(all) > 0 && r.IntN(3) == 0 {
			i := r.IntN(len(all))
			if err := a.release(all[i].at); err != nil {
				t.Fatal(err)
			}
			all = slices.Delete(all, i, i+1)
			continue
		}
		bytes, before := 1+r.IntN([]int{100, 1 << 12, 1 << 18}[r.IntN(3)]), a.end
		at := a.alloc(bytes)
		if at == nil {
			t.Fatal("the arena is full")
		}
		b := block{a.around(a.offset(at) + bytes - 1), at}
		if b.from != a.offset(at) || b.from%arenaAlign != 0 || bytes >= arenaLarge && (b.from%os.Getpagesize() != 0 || b.bytes%os.Getpagesize() != 0) {
			t.Fatalf("%d bytes lie at %d, with %d", bytes, b.from, b.bytes)
		}
		for _, other := range all {
			if b.from < other.to() && other.from < b.to() {
				t.Fatalf("%v and %v share memory", b.span, other.span)
			}
		}
		memory := unsafe.Slice((*byte)(at), bytes)
		if slices.ContainsFunc(memory, func(x byte) bool { return x != 0 }) {
			t.Fatalf("%d bytes at %d are not all zero", bytes, b.from)
		}
		for i := range memory {
			memory[i] = 0xff
		}
		if a.end == before {
			reused++
		}
		for i, s := range a.free {
			if s.bytes <= 0 || s.to() >= a.end || i > 0 && a.free[i-1].to() >= s.from {
				t.Fatalf("free are %v in front of %d", a.free, a.end)
			}
		}
		all = append(all, b)
	}
	if reused == 0 {
		t.Error("nothing that was freed was used again")
	}
	for _, b := range all {
		if err := a.release(b.at); err != nil {
			t.Fatal(err)
		}
	}
	if a.end != 0 || len(a.free) > 0 || len(a.blocks) > 0 {
		t.Errorf("after all was freed, %d bytes are in use, %v are free", a.end, a.free)
	}
	if err := a.close(); err != nil {
		t.Error(err)
	}
}
