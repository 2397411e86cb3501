package wire

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// The handshake is two frames with JSON payloads (docs/formats.md, Frames): the dialling end sends a hello, whose header names the
// generation and the link, and the listening end answers with its verdict and its own generation.
const (
	maxHandshake = 2048 // bytes of a payload
	maxReason    = 512  // of the reason for a close
)

// hello is the payload that opens a connection.
type hello struct {
	Job     string  `json:"job"`
	Purpose Purpose `json:"purpose"`
	// Timed: this end understands headers that say when their frame was sent. A release before those refuses them, so they are sent to who says this.
	Timed  bool   `json:"timed,omitempty"`
	Beside string `json:"beside,omitempty"` // the transport that this end has beside the connection
}

// verdict is what the listening end says to a hello.
type verdict string

const (
	accepted verdict = "accepted"
	refused  verdict = "refused" // for good
	outdated verdict = "stale"   // the dialling end is of an earlier generation
	early    verdict = "early"   // the dialling end is of a later generation, or the link is not expected yet: try again
)

// reply is the payload that answers a hello.
type reply struct {
	Verdict verdict `json:"verdict"`
	Reason  string  `json:"reason,omitempty"`
	Timed   bool    `json:"timed,omitempty"`  // as in a hello
	Beside  string  `json:"beside,omitempty"` // that of the hello, where this end has it as well: then they agree on its use
}

// writeMessage writes a frame in one piece.
func writeMessage(w io.Writer, h Header, payload any) error {
	text, err := json.Marshal(payload)
	if err != nil {
		return err
	}
	b := make([]byte, headerBytes, headerBytes+len(text))
	h.encode(b, len(text))
	_, err = w.Write(append(b, text...))
	return err
}

// errHandshake is wrapped by every error about bytes that are not a handshake of ours.
var errHandshake = errors.New("bad handshake: no avgpiped of this release at the other end, or TLS on one side only")

// readMessage reads a frame of a kind. It takes no memory for a length that is refused.
func readMessage(r io.Reader, kind Kind, payload any) (Header, error) {
	b := make([]byte, headerBytes)
	if _, err := io.ReadFull(r, b); err != nil {
		return Header{}, fmt.Errorf("read handshake: %w", err)
	}
	h, n, err := decodeHeader(b, maxHandshake)
	if err == nil && h.Kind != kind {
		err = fmt.Errorf("%v, want %v", h.Kind, kind)
	}
	if err != nil {
		return h, fmt.Errorf("%w: %w", errHandshake, err)
	}
	text := make([]byte, n)
	if _, err := io.ReadFull(r, text); err != nil {
		return h, fmt.Errorf("read handshake: %w", err)
	}
	if err := json.Unmarshal(text, payload); err != nil {
		return h, fmt.Errorf("%w: %w", errHandshake, err)
	}
	return h, nil
}
