package elastic

import "github.com/avgpipe/avgpipe/stage/flat"

// Segment is a run of a slice whose messages one group of pipelines sums for all groups: each other group sends it the messages of its pipelines, and gets the sum back. So a
// group sends, for each of its pipelines, all that the others own, and of its own segments the sum to each of them; with one pipeline a group that is 2 (G-1)/G vectors of
// the stage, as in a ring, and nobody has to have the messages of all.
type Segment struct {
	flat.Range
	Slice int // of Cut
	Owner int // the group that sums the messages
}

// The elements of a segment: few enough that one is sent while another is summed and a third received, and enough that this is what takes the time.
const (
	SegmentElements = 1 << 18 // at most, unless the caller says otherwise: 1 MiB
	leastSegments   = 16      // a slice is cut into so many as long as they have at least
	leastElements   = 1 << 14 // so many elements: 64 KiB
)

// Segments cuts the slices of a stage for so many groups, into segments of at most so many elements; 0: SegmentElements. Groups own them in turn, also beyond the end of a slice.
func Segments(cut []Slice, groups, most int) []Segment {
	var all []Segment
	for i, s := range cut {
		length := s.To - s.From
		count := 1
		if groups > 1 {
			count = pieces(length, groups, most)
		}
		for j := range count {
			all = append(all, Segment{
				flat.Range{From: s.From + length*j/count, To: s.From + length*(j+1)/count}, i, len(all) % groups,
			})
		}
	}
	return all
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
