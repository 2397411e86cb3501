package elastic

import "math"

// Drift bounds how far the pipelines of a stage move away from its center. Beyond the bound the rounds that follow are synchronous: each pipeline waits for all, and is then set to the
// center. They end when the pipelines move at most half as far within a round. It is a pure machine: the same distances give the same decisions on every copy of the center.
type Drift struct {
	most        float64 // Config.MaxDrift; 0: no bound
	synchronous bool
}

// NewDrift starts a bound for a stage whose next round is synchronous, or not.
func NewDrift(most float64, synchronous bool) Drift { return Drift{most, most > 0 && synchronous} }

// Bounded reports whether there is a bound: distances are not needed otherwise.
func (d *Drift) Bounded() bool { return d.most > 0 }

// Synchronous reports whether the next round is.
func (d *Drift) Synchronous() bool { return d.synchronous }

// Complete ends a round. square is the mean over the pipelines of their squared distances from the center before the round, with the updates of the round and before they are pulled;
// center is the squared length of that. It returns the drift, the root of square/center, and whether the next round is of the other kind than this one. A drift that is no number is beyond every bound.
func (d *Drift) Complete(square, center float64) (drift float64, changed bool) {
	drift = math.Sqrt(square / center)
	within := d.most
	if d.synchronous {
		within /= 2
	}
	next := d.Bounded() && !(drift <= within)
	changed = next != d.synchronous
	d.synchronous = next
	return drift, changed
}

// driftRuns are the places of a stage's vector, evenly over it, at which distances are measured, of at most driftRun elements each: a round shares the device with training.
const (
	driftRuns = 16
	driftRun  = 1 << 12
)

// Sampled calls f for each part of a run of elements of a stage at which distances are measured: of so many elements, from a place in the stage. The places do not depend on how the
// stage is cut.
func Sampled(from, to, length int, f func(from, to int)) {
	for i := range driftRuns {
		at := length * i / driftRuns
		end := min(at+driftRun, length*(i+1)/driftRuns)
		if at, end = max(at, from), min(end, to); at < end {
			f(at, end)
		}
	}
}
