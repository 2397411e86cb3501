package device

import (
	"hash/fnv"
	"io"
)

// Args are what changes from one run of an operation to the next. Operations that a program holds name them: DropoutMask.Stream, Factor.
type Args struct {
	Key    uint64  // of all random numbers of a step
	First  int     // the index of the micro-batch's first sample in its batch
	Weight float32 // the micro-batch's share of its batch
	// LossScale is what the gradient of each target's loss is multiplied by.
	LossScale float32
	// Past is how many positions of each sample earlier runs had, where a run continues sequences.
	Past int
	// Fresh says that gradients which one product makes are undefined: it sets them instead of adding.
	Fresh bool
	// Begins says that no forward of the batch has run before.
	Begins bool
	Update Update // of the optimizer's step
}

// Factor names an argument that a number of an operation is multiplied by.
type Factor uint8

// The factors.
const (
	One       Factor = iota
	Weight           // Args.Weight
	LossScale        // Args.LossScale
)

// Of is the argument that f names.
func (f Factor) Of(a Args) float32 {
	switch f {
	case Weight:
		return a.Weight
	case LossScale:
		return a.LossScale
	case One:
	}
	return 1
}

// Mix is a bijective hash of 64 bits: the finaliser of SplitMix64 (Steele, Lea and Flood 2014, figure 15).
func Mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// StreamOf names the random numbers of what has this name: the same on every split, in the forward, in the backward and in a forward that
// is computed again.
func StreamOf(name string) uint64 {
	h := fnv.New64a()
	_, _ = io.WriteString(h, name) // never fails
	return h.Sum64()
}

// Resolver returns what brings op to a run's arguments; nil when op has the same in every run. fresh says that op sets what it adds to where
// Args.Fresh.
func Resolver(op Op, fresh bool) func(Args) {
	switch o := op.(type) {
	case *Dropout:
		return o.resolver(&o.DropoutMask)
	case *Attention:
		return o.Dropout.resolver(&o.Dropout)
	case *AttentionBackward:
		return o.Dropout.resolver(&o.Dropout)
	case *ModulesForward:
		return func(a Args) { o.By = ModuleArgs{a.Key, a.First, a.Begins} }
	case *ModulesBackward:
		return func(a Args) { o.Weight = a.Weight }
	case *CacheAppend:
		return func(a Args) { o.Past = a.Past }
	case *CachedAttention:
		return func(a Args) { o.Past = a.Past }
	case *Embed:
		return func(a Args) { o.Past = a.Past }
	case *Rotate:
		return func(a Args) { o.Past = a.Past }
	case *Scale:
		return factored(&o.A, o.By)
	case *Axpy:
		return factored(&o.A, o.By)
	case *CrossEntropy:
		return factored(&o.Scale, o.By)
	case interface{ set(Update) }: // a step of an optimizer
		return func(a Args) { o.set(a.Update) }
	case *MatMul:
		if fresh && o.Accumulate {
			return func(a Args) { o.Accumulate = !a.Fresh }
		}
	}
	return nil
}

func factored(to *float32, by Factor) func(Args) {
	if by == One {
		return nil
	}
	constant := *to
	return func(a Args) { *to = constant * by.Of(a) }
}

func (d DropoutMask) resolver(to *DropoutMask) func(Args) {
	if d.Rate == 0 {
		return nil
	}
	return func(a Args) { to.Key, to.First = Mix(a.Key^d.Stream), a.First*d.PerSample }
}
