package pipeline

import "sync"

// gate decides which steps begin. All runners of a process share it, so that all stop after the same round.
type gate struct {
	tau uint64 // batches in a round

	mu    sync.Mutex
	final uint64 // last round
	begun uint64 // the round that the runner furthest ahead has begun
}

// begin reports whether step may begin.
func (g *gate) begin(step uint64) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if step >= g.final*g.tau {
		return false
	}
	g.begun = max(g.begun, step/g.tau+1)
	return true
}

// ahead reports whether step will begin as things stand: for work that is done ahead.
func (g *gate) ahead(step uint64) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return step < g.final*g.tau
}
