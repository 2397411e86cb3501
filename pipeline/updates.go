package pipeline

import "github.com/avgpipe/avgpipe/elastic"

// updates is how many updates an optimizer has taken before a step, whose state was zero at the step fresh: one a step, but for an idle one.
func updates(needs elastic.Needs, fresh, step uint64) uint64 {
	if idle := needs.Synchronous; needs.Idle(idle+1) && fresh <= idle && idle < step {
		return step - fresh - 1
	}
	return step - fresh
}

// fresh is a step at which the state was zero that has seen so many updates by a step: that which updates is told.
func fresh(needs elastic.Needs, step, seen uint64) uint64 {
	at := step - seen
	if idle := needs.Synchronous; needs.Idle(idle+1) && 0 < at && at <= idle && idle < step {
		return at - 1
	}
	return at
}
