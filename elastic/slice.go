package elastic

import "github.com/avgpipe/avgpipe/stage/flat"

// Run is a run of elements of a stage's flat vector that belong together: a tensor.
type Run struct {
	flat.Range
	// Layer of the model, counted from the input. A copy that is tied to another tensor has that one's: both must be updated alike.
	Layer int
	// Trained is its number among those layers that have parameters that are trained, counted from the input: those that have none send nothing.
	Trained int
	// Tied: there is a copy of the tensor, or it is one, in this vector or in that of another stage. All copies take the same updates, to the bit.
	Tied bool
	// Original is where the tensor lies, in the same vector and of the same length, that this one is a copy of, bit by bit; empty where it is no copy, or its original lies elsewhere.
	Original flat.Range
}

// Layout is what lies where in the flat vector of a stage: runs that follow each other without a gap.
type Layout []Run

// IsCopy reports whether the run's original lies in the same vector.
func (r Run) IsCopy() bool { return r.Original.To > r.Original.From }

// Whole is the layout of a vector of which nothing is known but its length: one tensor of the first layer.
func Whole(length int) Layout { return Layout{{Range: flat.Range{To: length}}} }

// Slice is a run of a stage's flat vector that is exchanged by itself: in rounds of its own, by rules of its own.
type Slice struct {
	flat.Range
	Rules Method
	Needs Needs // of the rules, in a run that goes on from where it does
	// Drains: the round that the run goes on from has a mean gradient of it that is not applied yet, and the method has nothing late here. It is applied before the next round.
	Drains bool
}

// cutter is a method that treats the layers of a stage differently.
type cutter interface {
	cut(Layout) []Slice
}

// Cut is how a method exchanges the vector of a stage: slices that follow each other without a gap, none of them empty. Most methods exchange all of it at once.
func Cut(m Method, l Layout) []Slice { return CutAfter(m, l, 0, 0) }

// CutAfter is Cut in a run that goes on after a round in which the gradients of so many layers, from the input, were in flight (Needs.InFlight): also where these end. Where gradients
// are late and none was in flight, they begin to be late after the round. A method that exchanges no gradients does not care.
func CutAfter(m Method, l Layout, round uint64, inFlight int) []Slice {
	had := func(r Run) bool { return m.Needs().Gradients && r.Layer < inFlight }
	var all []Slice
	for from := 0; from < len(l); {
		to := from + 1
		for to < len(l) && had(l[to]) == had(l[from]) {
			to++
		}
		for _, s := range cut(m, l[from:to]) {
			s.Needs = s.Rules.Needs()
			s.Drains = had(l[from]) && s.Needs.Timing == After
			if !had(l[from]) {
				s.Needs = s.Needs.Begin(round)
			}
			all = append(all, s)
		}
		from = to
	}
	return all
}

// cut cuts a part of a vector.
func cut(m Method, l Layout) []Slice {
	if c, ok := m.(cutter); ok {
		return c.cut(l)
	}
	return []Slice{{Range: flat.Range{From: l[0].From, To: l[len(l)-1].To}, Rules: m}}
}

// Drained are the runs of a layout whose gradients were in flight after a round, of so many layers, and that a method has nothing late of.
func Drained(m Method, l Layout, inFlight int) (all []flat.Range) {
	for _, r := range l {
		switch last := len(all) - 1; {
		case r.Layer >= inFlight || r.Layer < m.Needs().StaleLayers:
		case last >= 0 && all[last].To == r.From:
			all[last].To = r.To
		default:
			all = append(all, r.Range)
		}
	}
	return all
}
