package layer

// parameterless is embedded by layers that have no parameters, and no matrix product.
type parameterless struct{}

// Params implements Layer.
func (parameterless) Params() []Param { return nil }

// FLOPs implements Layer.
func (parameterless) FLOPs(Size) (forward, backward float64) { return 0, 0 }

// BackwardWeight implements Layer.
func (parameterless) BackwardWeight(Pass) {}

// memoryless is embedded by layers that save nothing for the backward but their input, and keep nothing between its halves.
type memoryless struct{}

// Saved implements Layer.
func (memoryless) Saved(Size) int { return 0 }

// Kept implements Layer.
func (memoryless) Kept(Size) int { return 0 }
