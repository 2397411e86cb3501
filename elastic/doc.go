// Package elastic averages parallel pipelines around a center.
//
// It has two parts, each usable and tested alone:
//
//   - Method: an averaging method is a pair of pure rules over flat vectors, one for the pipeline and one for the center
//     (method.go has the interface and the table of methods; each family has a file).
//   - Center: the order in which those rules run, as a state machine. One for each stage: shard k of the center averages stage
//     k of all pipelines (center.go).
//
// Neither does I/O, starts a goroutine or reads a clock, so the same inputs give the same bits on every host. Package
// internal/shard makes a round's vectors durable, package internal/cluster records which rounds are committed.
//
// # One shard of the center
//
// The process that hosts a stage has one Center for it, and vectors on the stage's device: the center's x~ and its sum, and for each
// pipeline the weights x and Needs.Buffers messages. It passes every input to the Center and executes the returned actions, in
// order, on the device's executor:
//
//	actions, err := center.Update(pipeline, round) // the pipeline has trained Config.Tau batches; its message is complete
//	for _, a := range actions {
//		switch a.Kind {
//		case elastic.Pull: // the pipeline's rule, toward x~ as it is now
//			method.Pull(x[a.Pipeline], message[a.Pipeline][a.Round], shard.Center)
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
// With a Needs.Period rules run in some rounds alone: Pull, Merge and Advance where Needs.Exchanges says so, and Mixer.Mix in the place of Pull where Needs.Mixes does.
//
// With Needs.Turns one pipeline alone has a rule in a round (Needs.Visits): Pull and Merge of the others do nothing, nor does Advance where that one is no member any more.
//
// A round's snapshot is a consistent cut: every pipeline as it left the round, and the center after it. Resuming from it and
// going on gives the same bits as never having stopped.
package elastic
