// Package elastic averages parallel pipelines around a center and makes the center's rounds durable.
//
// It has four parts, each usable and tested alone:
//
//   - Method: an averaging method is a pair of pure rules over flat vectors, one for the pipeline and one for the center
//     (method.go; one file a method). Table methods holds them all.
//   - Center: the order in which those rules run, as a state machine. One for each stage: shard k of the center averages stage
//     k of all pipelines (center.go).
//   - Store: shards of committed rounds as immutable files named by their SHA-256 (shard.go, store.go).
//   - State, Log: the replicated record of jobs, generations and committed rounds (command.go, state.go), and the Raft log that
//     replicates it (log.go). It carries digests, never tensors.
//
// Method, Center and State do no I/O, start no goroutine and read no clock, so the same inputs give the same bits on every host.
//
// # One shard of the center
//
// Whoever hosts a stage owns one Center for it, and vectors that lie where the stage computes: the center's x~ and its sum, and for
// each pipeline the weights x and Timing.Buffers messages. It hands every input to the Center and executes the actions
// that come back, in order, on the device's executor:
//
//	actions, err := center.Update(pipeline, round) // the pipeline has trained Period batches; its message is complete
//	for _, a := range actions {
//		switch a.Kind {
//		case elastic.Dilute: // the pipeline's rule, toward x~ as it is now
//			method.Dilute(x[a.Pipeline], message[a.Pipeline][a.Round], shard.Center)
//		case elastic.Capture: // copy the pipeline's weights and optimizer state for the snapshot of a.Round
//		case elastic.Release: // the pipeline may start the first batch after a.Round
//		case elastic.Merge: // the center's rule; the message may be reused from here on
//			method.Merge(shard, message[a.Pipeline][a.Round], a.First)
//		case elastic.Advance: // x~ moves: the round is complete
//			method.Advance(shard, a.Count)
//		case elastic.Snapshot: // copy x~; with the captures of this round it is what a commit of the round holds
//		case elastic.Admit: // a new pipeline starts from x~
//			x[a.Pipeline].Copy(shard.Center)
//		}
//	}
//
// A round's snapshot is a consistent cut: every pipeline as it left the round, and the center after it. Resuming from it and
// going on gives the same bits as never having stopped.
package elastic
