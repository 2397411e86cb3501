// Package cluster is the replicated record of jobs, their generations and their committed rounds, and of the members of a cluster, as values: a State, and Commands
// that turn one State into the next. It does no I/O, starts no goroutine and reads no clock, so every host that applies the same
// commands has the same State. It carries digests of shards, never tensors.
//
// Package raftlog replicates the commands through Raft.
package cluster
