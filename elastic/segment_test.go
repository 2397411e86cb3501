package elastic

import (
	"math/rand/v2"
	"testing"

	"github.com/avgpipe/avgpipe/stage/flat"
)

// TestSegmentsCoverTheStage: they follow each other, stay within a slice, are of even length, and every group owns as much but for one of them. Those of a copy lie in it as those of its
// original do in that, and have their owners.
func TestSegmentsCoverTheStage(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	for range 2000 {
		groups, most := 1+random.IntN(6), []int{0, 1, 7, 100, 1 << 14}[random.IntN(5)]
		cut, l := randomCut(random, most)
		segments := Segments(cut, l, groups, most)
		at, all := 0, 0
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
			if s.Original < 0 {
				owned[s.Owner] += length
				all += length
			}
			longest = max(longest, length)
			checkCopy(t, segments, s, l, groups)
		}
		if at != cut[len(cut)-1].To || groups == 1 && len(segments) != len(cut) {
			t.Fatalf("slices %v, %d groups: segments %v", cut, groups, segments)
		}
		for _, n := range owned {
			if spread := all/groups - n; groups > 1 && max(spread, -spread) > longest*len(l)+len(segments) {
				t.Fatalf("slices %v, %d groups, at most %d: the groups own %v", cut, groups, most, owned)
			}
		}
	}
}

// randomCut makes slices of some tensors, of which some are copies of others.
func randomCut(random *rand.Rand, most int) (cut []Slice, l Layout) {
	at := 0
	for range 1 + random.IntN(4) {
		from := at
		for range 1 + random.IntN(3) {
			length := 1 + random.IntN([]int{5, 1000, 1 << 22}[random.IntN(3)])
			if most > 0 {
				length = 1 + random.IntN(300*most)
			}
			run := Run{}
			if len(l) > 0 && random.IntN(2) == 0 {
				if of := l[random.IntN(len(l))]; !of.IsCopy() {
					run.Tied, run.Original, length = true, of.Range, of.To-of.From
				}
			}
			run.Range = flat.Range{From: at, To: at + length}
			l = append(l, run)
			at += length
		}
		cut = append(cut, Slice{Range: flat.Range{From: from, To: at}})
	}
	for _, r := range l {
		for i := range l {
			l[i].Tied = l[i].Tied || l[i].Range == r.Original
		}
	}
	if n := len(l); n > 1 && random.IntN(4) == 0 { // the first is the copy
		for i := range l {
			if l[i].IsCopy() && l[i].Original == l[0].Range {
				l[0].Original, l[i].Original = l[i].Range, flat.Range{}
				break
			}
		}
		for i := range l[1:] {
			if l[0].IsCopy() && l[i+1].Original == l[0].Range {
				l[i+1].Original = l[0].Original
			}
		}
	}
	return cut, l
}

// checkCopy holds a segment to its original, if it is in a copy.
func checkCopy(t *testing.T, segments []Segment, s Segment, l Layout, groups int) {
	t.Helper()
	for _, r := range l {
		switch {
		case groups == 1 || s.From < r.From || s.From >= r.To:
		case s.To > r.To && (r.IsCopy() || s.Original >= 0):
			t.Fatalf("segment %+v goes beyond the copy %+v", s, r)
		case !r.IsCopy() && s.Original >= 0:
			t.Fatalf("segment %+v is a copy, %+v is none", s, r)
		case r.IsCopy():
			of := segments[max(s.Original, 0)]
			if s.Original < 0 || of.Original >= 0 || of.Owner != s.Owner || of.From-r.Original.From != s.From-r.From || of.To-of.From != s.To-s.From {
				t.Fatalf("segment %+v of the copy %+v has the original %+v", s, r, of)
			}
		}
	}
}
