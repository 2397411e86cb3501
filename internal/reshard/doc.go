// Package reshard says where the vectors of a stage lie in the shards of a committed round, whatever the number of stages and of pipelines was
// when the round was committed. It computes with headers alone and reads no vector.
//
//   - Needs: which shards of a round a stage needs.
//   - ParseSource, Assemble: the pieces of these shards that make a stage's vectors.
//   - AssembleFrozen: the same for what is not trained.
package reshard
