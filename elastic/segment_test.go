package elastic

import (
	"math/rand/v2"
	"testing"

	"github.com/avgpipe/avgpipe/stage/flat"
)

// TestSegmentsCoverTheStage: they follow each other, stay within a slice, are of even length, and every group owns as much but for one of them.
func TestSegmentsCoverTheStage(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	for range 2000 {
		groups, most := 1+random.IntN(6), []int{0, 1, 7, 100, 1 << 14}[random.IntN(5)]
		var cut []Slice
		at := 0
		for range 1 + random.IntN(4) {
			length := 1 + random.IntN([]int{5, 1000, 1 << 22}[random.IntN(3)])
			if most > 0 {
				length = 1 + random.IntN(300*most)
			}
			cut = append(cut, Slice{Range: flat.Range{From: at, To: at + length}})
			at += length
		}
		segments := Segments(cut, groups, most)
		at = 0
		owned, longest := make([]int, groups), 0
		for _, s := range segments {
			length := s.To - s.From
			if s.From != at || length < 1 || s.From < cut[s.Slice].From || s.To > cut[s.Slice].To {
				t.Fatalf("slices %v, %d groups, at most %d: segment %+v after %d", cut, groups, most, s, at)
			}
			if limit := max(most, SegmentElements*min(1, 1-min(most, 1))); groups > 1 && length > limit {
				t.Fatalf("slices %v, %d groups: segment %+v has more than %d elements", cut, groups, s, limit)
			}
			at = s.To
			owned[s.Owner] += length
			longest = max(longest, length)
		}
		if at != cut[len(cut)-1].To || groups == 1 && len(segments) != len(cut) {
			t.Fatalf("slices %v, %d groups: segments %v", cut, groups, segments)
		}
		for _, n := range owned {
			if spread := at/groups - n; groups > 1 && max(spread, -spread) > longest*len(cut)+len(segments) {
				t.Fatalf("slices %v, %d groups, at most %d: the groups own %v", cut, groups, most, owned)
			}
		}
	}
}
