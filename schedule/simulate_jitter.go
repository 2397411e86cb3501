package schedule

// jittered is a time of the process's next op, up to Load.Jitter shorter or longer than the time given: evenly so, by a hash of which
// op it is. Two simulations of one load jitter alike.
func (e *engine) jittered(v *process, time float64) float64 {
	if e.load.Jitter == 0 {
		return time
	}
	h := uint64(0)
	for _, part := range [...]int{v.pipeline, v.device, int(v.stage), v.batch, v.next} {
		h = mix(h ^ uint64(part)) //nolint:gosec // any bits do
	}
	even := float64(h>>11)/(1<<52) - 1 // in [-1, 1)
	return time * (1 + e.load.Jitter*even)
}

// mix is a bijection in which every bit of the argument changes each bit of the result with a chance of one half: the finalizer
// of SplitMix64 (Steele, Lea, Flood 2014, "Fast splittable pseudorandom number generators").
func mix(h uint64) uint64 {
	h += 0x9e3779b97f4a7c15
	h = (h ^ h>>30) * 0xbf58476d1ce4e5b9
	h = (h ^ h>>27) * 0x94d049bb133111eb
	return h ^ h>>31
}
