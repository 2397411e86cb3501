// Package checkpoint writes files that are either whole and durable or not there, and reads and writes safetensors, the
// format in which models are imported and exported.
//
// An AtomicFile is written under a temporary name, synced, renamed and made durable by syncing its directory; a crash at any
// point leaves the old file or the new one, and at worst a temporary file that RemoveStale takes away:
//
//	f, err := checkpoint.Create(dir, 0o640, size)
//	defer f.Abort() // does nothing after Commit
//	... f.Write ...
//	err = f.Commit("name")
//
// A record (WriteRecord, ReadRecord) is such a file that says one thing as JSON, with its kind, version and checksum.
//
// A safetensors file is opened whole or not at all: its header is checked against its length, and its digest when it carries
// one, before any tensor can be read.
package checkpoint
