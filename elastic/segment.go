package elastic

import (
	"slices"

	"github.com/avgpipe/avgpipe/stage/flat"
)

// Segment is a run of a slice whose messages one group of pipelines sums for all groups: each other group sends it the messages of its pipelines, and gets the sum back. So a
// group sends, for each of its pipelines, all that the others own, and of its own segments the sum to each of them; with one pipeline a group that is 2 (G-1)/G vectors of
// the stage, as in a ring, and nobody has to have the messages of all.
type Segment struct {
	flat.Range
	Slice int // of Cut
	Owner int // the group that sums the messages
	// Original is the segment whose messages and sum this one's are, bit by bit, so that they need not be sent; -1: none. Both have the same owner.
	Original int
}

// The elements of a segment: few enough that one is sent while another is summed and a third received, and enough that this is what takes the time.
const (
	SegmentElements = 1 << 18 // at most, unless the caller says otherwise: 1 MiB
	leastSegments   = 16      // a slice is cut into so many as long as they have at least
	leastElements   = 1 << 14 // so many elements: 64 KiB
)

// Segments cuts the slices of a stage of this layout for so many groups, into segments of at most so many elements; 0: SegmentElements. Groups own them in turn, also beyond the end of a
// slice. Tied tensors have segments of their own, which lie in all copies alike, so that what is rounded by segments is rounded alike.
func Segments(cut []Slice, l Layout, groups, most int) []Segment {
	var all []Segment
	if groups == 1 {
		for i, s := range cut {
			all = append(all, Segment{s.Range, i, 0, -1})
		}
		return all
	}
	tied, at := tiedOf(l), map[int]int{}
	for i, s := range cut {
		for _, part := range apart(s.Range, tied) {
			length := part.To - part.From
			count := pieces(length, groups, most)
			for j := range count {
				one := flat.Range{From: part.From + length*j/count, To: part.From + length*(j+1)/count}
				at[one.From] = len(all)
				all = append(all, Segment{one, i, -1, -1})
			}
		}
	}
	for i := range all {
		if r := within(all[i].From, tied); r != nil && r.IsCopy() {
			all[i].Original = at[all[i].From-r.From+r.Original.From]
		}
	}
	share(all, groups)
	return all
}

func tiedOf(l Layout) (all []Run) {
	for _, r := range l {
		if r.Tied {
			all = append(all, r)
		}
	}
	return all
}

// apart cuts a slice where tied tensors begin and end.
func apart(s flat.Range, tied []Run) (all []flat.Range) {
	ends := []int{s.From, s.To}
	for _, r := range tied {
		for _, end := range []int{r.From, r.To} {
			if s.From < end && end < s.To {
				ends = append(ends, end)
			}
		}
	}
	slices.Sort(ends)
	ends = slices.Compact(ends)
	for i, end := range ends[1:] {
		all = append(all, flat.Range{From: ends[i], To: end})
	}
	return all
}

// within is the run that an element belongs to.
func within(element int, runs []Run) *Run {
	for i, r := range runs {
		if r.From <= element && element < r.To {
			return &runs[i]
		}
	}
	return nil
}

// share gives segments their owners.
func share(all []Segment, groups int) {
	next := 0
	for i := range all {
		if all[i].Original < 0 {
			all[i].Owner = next % groups
			next++
		}
	}
	for i := range all {
		if of := all[i].Original; of >= 0 {
			all[i].Owner = all[of].Owner
		}
	}
}

// pieces is into how many segments so many elements are cut.
func pieces(length, groups, most int) int {
	least := leastElements
	if most == 0 {
		most = SegmentElements
	} else {
		least = min(least, most)
	}
	count := max((length+most-1)/most, min(leastSegments, length/least))
	if count < 2 {
		return 1
	}
	return min((count+groups-1)/groups*groups, length) // every group owns as many, if there are any
}
