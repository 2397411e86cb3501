package stage

import (
	"fmt"
	"slices"
	"strings"
)

// Recompute says what a stage does not keep from a micro-batch's forward to its backward, and computes again instead
// (Chen et al. 2016, "Training deep nets with sublinear memory cost", section 3; per stage as Huang et al. 2019, section
// 2.3). The bits are those of a stage that keeps everything: what is random is drawn from keys, and running statistics
// are counted once.
type Recompute string

// The kinds of recomputation. Block and full cost one more forward each; they differ in when memory is needed.
const (
	// RecomputeNone keeps everything. It is what the empty Recompute means.
	RecomputeNone Recompute = "none"
	// RecomputeBlock keeps the input of every layer, the unit of split, and runs the layer's forward again just before its
	// backward. All passes share the memory of the largest layer.
	RecomputeBlock Recompute = "block"
	// RecomputeFull keeps the input of the stage alone, and runs the whole stage's forward again just before the backward.
	// All passes share the memory that one micro-batch holds without recomputation: it pays when several are in flight.
	RecomputeFull Recompute = "full"
)

var recomputes = []string{string(RecomputeNone), string(RecomputeBlock), string(RecomputeFull)}

// Recomputes lists what Recompute can be.
func Recomputes() []string { return slices.Clone(recomputes) }

func (r Recompute) validate() error {
	if !slices.Contains(recomputes, string(r)) {
		return fmt.Errorf("recompute is %q; it is one of %s", string(r), strings.Join(recomputes, ", "))
	}
	return nil
}

// any reports whether some forward runs again.
func (r Recompute) any() bool { return r != RecomputeNone }
