package tuner

import "github.com/avgpipe/avgpipe/schedule"

// FixedCosts are what a stage takes whichever layers it has and however many samples are in its micro-batches, in seconds: emulated
// devices can be told so. 0 leaves a time to the layers.
type FixedCosts struct {
	Forward, Backward, Update float64
}

// applyFixed replaces what the layers of stage s take by what the profile fixes, which is said of the stage wherever it lives: of a
// device so slow, on one of speed 1.
func (p *Profile) applyFixed(c *schedule.Costs, s int, slow float64) {
	if len(p.Fixed) == 0 {
		return
	}
	t := p.Fixed[min(s, len(p.Fixed)-1)]
	for _, one := range []struct {
		of   []float64
		time float64
	}{
		{c.Forward, t.Forward}, {c.Backward, t.Backward}, {c.BackwardInput, t.Backward / 2}, {c.BackwardWeight, t.Backward / 2}, {c.Update, t.Update},
	} {
		if one.time > 0 {
			one.of[s] = one.time / slow
		}
	}
}
