// Package pinned says which objects of buckets and web servers a job reads: what they were when the job was submitted.
package pinned

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/avgpipe/avgpipe/job"
)

// Object is a file that is not on a host.
type Object struct {
	Entry  string `json:"entry"`            // of data.files or data.validation, that it was found by
	URL    string `json:"url"`              // job.URL.String
	Name   string `json:"name"`             // as that of a file of a corpus: relative to where its pattern starts
	Bytes  int64  `json:"bytes"`            // at least 1
	ETag   string `json:"etag,omitempty"`   // strong, without quotes; empty: SHA256 tells
	SHA256 string `json:"sha256,omitempty"` // hexadecimal, as the user says; empty: ETag tells
}

// ID names the content among all objects: 64 hexadecimal digits.
func (o *Object) ID() string {
	sum := sha256.Sum256(fmt.Appendf(nil, "avgpipe object 1\n%q %q %q %d\n", o.URL, o.ETag, o.SHA256, o.Bytes))
	return hex.EncodeToString(sum[:])
}

// Shown is the URL for people and logs.
func (o *Object) Shown() string { return job.Shown(o.URL) }

// Path is where a copy lies below a directory of copies.
func (o *Object) Path(dir string) string { return filepath.Join(dir, o.ID()) }

// Of are the objects of an entry.
func Of(all []Object, entry string) []Object {
	return slices.DeleteFunc(slices.Clone(all), func(o Object) bool { return o.Entry != entry })
}

// Bytes is the length of all, each counted once.
func Bytes(all []Object) (n int64) {
	seen := map[string]bool{}
	for i := range all {
		if id := all[i].ID(); !seen[id] {
			seen[id] = true
			n += all[i].Bytes
		}
	}
	return n
}
