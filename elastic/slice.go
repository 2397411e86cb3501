package elastic

import "github.com/avgpipe/avgpipe/stage/flat"

// Run is a run of elements of a stage's flat vector that belong together: a tensor.
type Run struct {
	flat.Range
	// Layer of the model, counted from the input. A copy that is tied to another tensor has that one's: both must be updated alike.
	Layer int
}

// Layout is what lies where in the flat vector of a stage: runs that follow each other without a gap.
type Layout []Run

// Whole is the layout of a vector of which nothing is known but its length: one tensor of the first layer.
func Whole(length int) Layout { return Layout{{Range: flat.Range{To: length}}} }

// Slice is a run of a stage's flat vector that is exchanged by itself: in rounds of its own, by rules of its own.
type Slice struct {
	flat.Range
	Rules Method
}

// cutter is a method that treats the layers of a stage differently.
type cutter interface {
	cut(Layout) []Slice
}

// Cut is how a method exchanges the vector of a stage: slices that follow each other without a gap, none of them empty. Most methods exchange all of it at once.
func Cut(m Method, l Layout) []Slice {
	if c, ok := m.(cutter); ok {
		return c.cut(l)
	}
	return []Slice{{flat.Range{To: l[len(l)-1].To}, m}}
}
