package cluster

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// MaxCommandBytes bounds a command when it is proposed.
const MaxCommandBytes = 16 << 20

// stateVersion is the newest version of a state's JSON (docs/formats.md). Version 1 had a header, with a checksum that a snapshot file has as
// well. Without a cluster in it a state is written as version 2, which older programs read.
const (
	stateVersion = 3
	aloneVersion = 2
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

	Authority *Authority `json:"authority,omitempty"`
	Nodes     []*Node    `json:"nodes,omitempty"`  // by name
	Tokens    []*Token   `json:"tokens,omitempty"` // by hash
}

// MarshalBinary encodes the state. Equal states give equal bytes.
func (s *State) MarshalBinary() ([]byte, error) {
	version := stateVersion
	if s.authority == nil {
		version = aloneVersion
	}
	body, err := json.Marshal(stateBody{version, s.Index, s.NextJob, s.Unknown, s.Jobs(), s.authority, s.Nodes(), s.Tokens()})
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
	s := NewState()
	s.Index, s.NextJob, s.Unknown = b.Index, b.NextJob, b.Unknown
	for _, j := range b.Jobs {
		if j == nil || s.jobs[j.ID] != nil {
			return nil, fmt.Errorf("read state: a job is missing or there twice among %d", len(b.Jobs))
		}
		s.jobs[j.ID] = j
	}
	if err := s.readCluster(&b); err != nil {
		return nil, fmt.Errorf("read state: %w", err)
	}
	s.jobOrder, s.nodeOrder = &order[*Job]{}, &order[*Node]{}
	return s, nil
}

// readCluster takes over what a state says of a cluster.
func (s *State) readCluster(b *stateBody) error {
	if b.Authority == nil {
		if len(b.Nodes)+len(b.Tokens) > 0 {
			return fmt.Errorf("%d nodes and %d tokens without an authority", len(b.Nodes), len(b.Tokens))
		}
		return nil
	}
	s.authority = b.Authority
	problem := s.authority.Validate()
	for _, n := range b.Nodes {
		if n == nil || s.nodes[n.Name] != nil {
			return fmt.Errorf("a node is missing or there twice among %d", len(b.Nodes))
		}
		s.nodes[n.Name], problem = n, errors.Join(problem, n.Validate())
	}
	for _, t := range b.Tokens {
		if t == nil || s.tokens[string(t.Hash)] != nil {
			return fmt.Errorf("a token is missing or there twice among %d", len(b.Tokens))
		}
		s.tokens[string(t.Hash)], problem = t, errors.Join(problem, t.Validate())
	}
	return problem
}
