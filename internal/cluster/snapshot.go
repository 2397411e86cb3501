package cluster

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
)

// MaxCommandBytes bounds a command when it is proposed.
const MaxCommandBytes = 16 << 20

// stateVersion is the version of a state's JSON (docs/formats.md). Version 1 had a header, with a checksum that a snapshot file has as well.
const (
	stateVersion = 2
	stateMagic   = "AVGS" // of version 1
	stateHeader  = 4 + 4 + 8 + 4
)

// stateBody is the JSON of a state.
type stateBody struct {
	Version int    `json:"version"`
	Index   uint64 `json:"index"`
	NextJob uint64 `json:"next_job"`
	Unknown uint64 `json:"unknown"`
	Jobs    []*Job `json:"jobs"` // in the order of submission
}

// MarshalBinary encodes the state. Equal states give equal bytes.
func (s *State) MarshalBinary() ([]byte, error) {
	body, err := json.Marshal(stateBody{stateVersion, s.Index, s.NextJob, s.Unknown, s.Jobs()})
	if err != nil {
		return nil, fmt.Errorf("encode state at index %d: %w", s.Index, err)
	}
	return body, nil
}

// ReadState decodes what MarshalBinary wrote. Whoever keeps the bytes sees to it that they are whole.
func ReadState(r io.Reader) (*State, error) {
	body, err := io.ReadAll(r)
	if err != nil {
		return nil, fmt.Errorf("read state: %w", err)
	}
	if bytes.HasPrefix(body, []byte(stateMagic)) {
		body = body[min(stateHeader, len(body)):]
	}
	var b stateBody
	if err := json.Unmarshal(body, &b); err != nil {
		return nil, fmt.Errorf("read state: %w", err)
	}
	if b.Version > stateVersion {
		return nil, fmt.Errorf("read state: version %d, this program reads up to %d", b.Version, stateVersion)
	}
	s := &State{Index: b.Index, NextJob: b.NextJob, Unknown: b.Unknown, jobs: make(map[string]*Job, len(b.Jobs))}
	for _, j := range b.Jobs {
		if j == nil || s.jobs[j.ID] != nil {
			return nil, fmt.Errorf("read state: a job is missing or there twice among %d", len(b.Jobs))
		}
		s.jobs[j.ID] = j
	}
	return s, nil
}
