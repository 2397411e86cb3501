package job

import _ "embed" // for Schema

// Schema is the JSON Schema (draft 2020-12) of the job file, for editors and other programs. It holds each field to its
// type and bounds; that micro-batches divide the batch and the like, only Parse knows.
//
//go:generate go test -run TestGeneratedFilesAreCurrent . -rewrite
//go:embed schema.json
var Schema []byte
