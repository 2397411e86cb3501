package pipeline

import "slices"

// Commit asks for a snapshot of a round, and with stop also that training ends there. When that is no longer possible, because a
// pipeline has gone beyond it here, nothing changes: name a round a little ahead of earliest. That is the earliest round that is possible, in both cases.
// A final round can be snapshotted at any time, also after training has ended, as long as the group lives (Config.Linger).
// Each stage here then delivers its part to Events.OnSnapshot.
//
// Every process of a job decides for itself. Whoever asks several of them names a round that all accept; parts of a round that
// some refused are delivered all the same, and may be thrown away. To end training, ask the process with the first stage of the first group first:
// no stage begins a round before the first one does, and no other group begins a round after the final one before it has a message of the first group that says
// where training ends.
func (g *Group) Commit(round uint64, stop bool) (earliest uint64, accepted bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.built || g.over {
		return g.config.StartRound + 1, false
	}
	g.gate.mu.Lock()
	defer g.gate.mu.Unlock()
	defer g.lockShards()()
	last, earliest := g.gate.final, g.possible()
	if stop {
		earliest = g.stoppable()
		if round < earliest || round > last {
			return min(earliest, last), false
		}
		last = round
	}
	switch {
	case round > last || round < min(earliest, last):
		return min(earliest, last), false
	case round < g.possible(): // it is the last: all pipelines stay as they leave it, so it can be read when they rest
		g.wanted = true
		if g.finished {
			g.captureFinal()
		}
	default:
		for _, st := range g.stages {
			for _, of := range st.shard.segments {
				// It is not earlier than the earliest that the center gave just now.
				if _, err := of.center.Snapshot(round); err != nil {
					panic("pipeline: " + err.Error())
				}
			}
		}
	}
	g.gate.final = last
	return min(earliest, last), true
}

// stoppable is the earliest round that training can end at. A group may begin a round once it has the messages of the others of the last but one
// (elastic.Before), so the first group, where it has several, ends no earlier than its messages can tell the others. The caller holds the gate's lock.
func (g *Group) stoppable() uint64 {
	begun := max(g.gate.begun, g.config.StartRound)
	first := g.config.Group == 0 && slices.ContainsFunc(g.config.Stages, func(s StageConfig) bool { return s.Index == 0 })
	if first && len(g.config.groups()) > 1 {
		return max(begun, min(begun+2, g.gate.final))
	}
	return begun
}

// possible is the earliest round that the shards can still snapshot as they pass it. The caller holds their locks.
func (g *Group) possible() uint64 {
	earliest := uint64(0)
	for _, st := range g.stages {
		for _, of := range st.shard.segments {
			earliest = max(earliest, of.center.EarliestSnapshot())
		}
	}
	return earliest
}

// Earliest is the earliest round that Commit would snapshot now.
func (g *Group) Earliest() uint64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.built {
		return g.config.StartRound + 1
	}
	defer g.lockShards()()
	return min(g.possible(), g.Final())
}

// lockShards locks all shards here, always in the same order.
func (g *Group) lockShards() (unlock func()) {
	for _, st := range g.stages {
		st.shard.mu.Lock()
	}
	return func() {
		for _, st := range g.stages {
			st.shard.mu.Unlock()
		}
	}
}

// Final is the last round.
func (g *Group) Final() uint64 { return g.gate.last() }

// captureFinal has every shard snapshot the final round, now that all is at rest. The caller holds mu.
func (g *Group) captureFinal() {
	for _, st := range g.stages {
		_ = send(g.ctx, st.shard.inputs, input{capture: true, round: st.shard.segments[0].center.Round()}) // it fails when the group ends
	}
}
