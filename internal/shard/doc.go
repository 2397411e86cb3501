// Package shard keeps what a committed round holds of each stage: a shard is an immutable file, named by its SHA-256, with the
// center's vectors of the stage and the state of every pipeline that is needed to resume (docs/formats.md).
//
//   - Header, Encode, Decode: the format.
//   - Store, Write, Read: the shards of one node, in a directory.
//   - Digest, Cursor: how others name a shard, and where a pipeline stood in its data.
package shard
