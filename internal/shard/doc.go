// Package shard keeps what a committed round holds of each stage: a shard is an immutable file, named by its SHA-256, with the
// center's vectors of the stage and the state of every pipeline that is needed to resume (docs/formats.md).
//
//   - Header, Encode, Decoder: the format.
//   - Store: the shards of one node (DirStore), and a twin in memory for tests (MemStore). Package shardtest is the conformance
//     suite.
//   - Digest, Cursor: how others name a shard, and where a pipeline stood in its data.
package shard
