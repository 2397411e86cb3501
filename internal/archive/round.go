// Package archive keeps committed rounds of jobs in a bucket, and gets them back.
//
//   - Round: the manifest of a round in a bucket, a JSON object.
//   - Archive.Save: puts a round there, its manifest last, and collects older ones.
//   - Archive.Newest, Archive.Fetch: find a round, and read its files, verified.
//
// A bucket's prefix holds, for each job, rounds/ROUND.json and files/SHA256. A file is never deleted that a manifest names.
package archive

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/avgpipe/avgpipe/internal/cluster"
	"github.com/avgpipe/avgpipe/internal/shard"
)

// Format names a manifest, and Version is that which is written and the newest that is read.
const (
	Format  = "avgpipe-round"
	Version = 1
	// maxRound bounds a manifest: the replicated log bounds what it is made of.
	maxRound = 16 << 20
)

// Round is the manifest of a round in a bucket: everything that another cluster needs to go on from it.
type Round struct {
	Format  string `json:"format"`
	Version int    `json:"version"`
	// Job is the job as the cluster knew it, with this round alone.
	Job cluster.Job `json:"job"`
	// Objects are small files beside the shards: the job file, and what goes with the model (export.ShardMeta.Companions).
	Objects []File    `json:"objects"`
	Written time.Time `json:"written"`
}

// File is a file of a round, named by its SHA-256.
type File struct {
	Digest shard.Digest `json:"digest"`
	Bytes  int64        `json:"bytes"`
}

// Manifest is the committed round.
func (r *Round) Manifest() *cluster.Manifest { return r.Job.LastCommitted() }

// Files are all that the round consists of, each once.
func (r *Round) Files() []File {
	all := append([]File{}, r.Objects...)
	for _, s := range r.Manifest().Files() {
		all = append(all, File{s.Digest, s.Bytes})
	}
	seen, out := map[shard.Digest]bool{}, all[:0]
	for _, f := range all {
		if !seen[f.Digest] {
			seen[f.Digest] = true
			out = append(out, f)
		}
	}
	return out
}

// Encode writes a manifest.
func (r *Round) Encode() ([]byte, error) {
	r.Format, r.Version = Format, Version
	text, err := json.MarshalIndent(r, "", " ")
	return append(text, '\n'), err
}

// Decode reads a manifest. It is refused whole unless every part of it is right.
func Decode(text []byte) (*Round, error) {
	var head struct {
		Format  string `json:"format"`
		Version int    `json:"version"`
	}
	if err := json.Unmarshal(text, &head); err != nil {
		return nil, fmt.Errorf("not a manifest of a round: %w", err)
	}
	if head.Format != Format {
		return nil, fmt.Errorf("not a manifest of a round: its format is %q, expected %q", head.Format, Format)
	}
	if head.Version < 1 || head.Version > Version {
		return nil, fmt.Errorf("a manifest of version %d; this program reads 1 to %d", head.Version, Version)
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	var r Round
	if err := d.Decode(&r); err != nil {
		return nil, fmt.Errorf("manifest of a round: %w", err)
	}
	if d.More() {
		return nil, errors.New("manifest of a round: more than one JSON value")
	}
	return &r, r.validate()
}

func (r *Round) validate() error {
	if len(r.Job.Committed) != 1 || r.Job.Committed[0] == nil {
		return fmt.Errorf("manifest of a round: it has %d rounds, expected 1", len(r.Job.Committed))
	}
	m := r.Manifest()
	if err := m.Validate(); err != nil {
		return err
	}
	if m.Round == 0 || len(r.Job.Spec) == 0 {
		return fmt.Errorf("manifest of round %d of job %s: a round from 1 on, and the job's spec, must be there", m.Round, m.Job)
	}
	for _, f := range r.Objects {
		if _, err := shard.ParseDigest(string(f.Digest)); err != nil {
			return fmt.Errorf("manifest of round %d of job %s: %w", m.Round, m.Job, err)
		}
		if f.Bytes < 1 {
			return fmt.Errorf("manifest of round %d of job %s: object of %d bytes", m.Round, m.Job, f.Bytes)
		}
	}
	return nil
}

// KeyOf names a job below a prefix: its name, when it was submitted and its number, so that jobs of several clusters share a bucket.
func KeyOf(j *cluster.Job) string {
	return fmt.Sprintf("%s-%s-%s", j.Name, j.Submitted.UTC().Format("20060102T150405Z"), j.ID)
}

// The names below a job's key.
const (
	roundsDir = "rounds"
	filesDir  = "files"
	suffix    = ".json"
)

func roundName(round uint64) string {
	return path.Join(roundsDir, fmt.Sprintf("%020d%s", round, suffix))
}
func fileName(d shard.Digest) string { return path.Join(filesDir, string(d)) }

// roundOf is the number of a round by its name, below a job's key.
func roundOf(name string) (uint64, bool) {
	digits, ok := strings.CutSuffix(strings.TrimPrefix(name, roundsDir+"/"), suffix)
	round, err := strconv.ParseUint(digits, 10, 64)
	return round, ok && err == nil && roundName(round) == name
}
