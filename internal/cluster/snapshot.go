package cluster

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"io"
)

// The snapshot of the state: magic, version, length and CRC-32C of what follows, then JSON (docs/formats.md).
const (
	stateMagic   = "AVGS"
	stateVersion = 1
	stateHeader  = 4 + 4 + 8 + 4
)

// MaxCommandBytes bounds a command when it is proposed.
const MaxCommandBytes = 16 << 20

// castagnoli is the polynomial of every checksum in this package.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// stateBody is the JSON of a snapshot.
type stateBody struct {
	Index   uint64 `json:"index"`
	NextJob uint64 `json:"next_job"`
	Unknown uint64 `json:"unknown"`
	Jobs    []*Job `json:"jobs"` // in the order of submission
}

// MarshalBinary encodes the state. Equal states give equal bytes.
func (s *State) MarshalBinary() ([]byte, error) {
	body, err := json.Marshal(stateBody{s.Index, s.NextJob, s.Unknown, s.Jobs()})
	if err != nil {
		return nil, fmt.Errorf("encode state at index %d: %w", s.Index, err)
	}
	out := make([]byte, 0, stateHeader+len(body))
	out = append(out, stateMagic...)
	out = binary.LittleEndian.AppendUint32(out, stateVersion)
	out = binary.LittleEndian.AppendUint64(out, uint64(len(body)))
	out = binary.LittleEndian.AppendUint32(out, crc32.Checksum(body, castagnoli))
	return append(out, body...), nil
}

// ReadState decodes what MarshalBinary wrote. Nothing is returned unless all of it is whole.
func ReadState(r io.Reader) (*State, error) {
	var header [stateHeader]byte
	if _, err := io.ReadFull(r, header[:]); err != nil {
		return nil, fmt.Errorf("read state: header: %w", err)
	}
	if string(header[:4]) != stateMagic {
		return nil, fmt.Errorf("read state: starts with %q, expected %q", header[:4], stateMagic)
	}
	if v := binary.LittleEndian.Uint32(header[4:]); v != stateVersion {
		return nil, fmt.Errorf("read state: version %d, this program reads %d", v, stateVersion)
	}
	length := binary.LittleEndian.Uint64(header[8:])
	body, err := io.ReadAll(r) // takes memory for what is there, not for what the header claims
	if err != nil {
		return nil, fmt.Errorf("read state: %w", err)
	}
	if uint64(len(body)) != length {
		return nil, fmt.Errorf("read state: %d bytes follow the header, expected %d", len(body), length)
	}
	if found, expected := crc32.Checksum(body, castagnoli), binary.LittleEndian.Uint32(header[16:]); found != expected {
		return nil, fmt.Errorf("read state: checksum is %08x, expected %08x: damaged", found, expected)
	}
	return decodeState(body)
}

// decodeState reads the JSON of a snapshot whose checksum is right.
func decodeState(body []byte) (*State, error) {
	var b stateBody
	if err := json.Unmarshal(body, &b); err != nil {
		return nil, fmt.Errorf("read state: %w", err)
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
