package membership

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Bounds of what a node says of itself.
const (
	maxVersionBytes = 255
	maxCommands     = 1<<16 - 1

	metaFormat = 1 // later ones only append
	metaHead   = 5 // bytes before the version
)

const flagLeaving = 1

// meta is what a node says of itself: a byte of the format, one of flags, two of the version of commands, one of the length of the program's
// version, and that version. Bytes after it are of later programs.
type meta struct {
	leaving  bool // it stops in order
	commands int
	version  string
}

// encode returns the bytes of m, whose fields are in their bounds.
func (m meta) encode() []byte {
	out := make([]byte, metaHead, metaHead+len(m.version))
	out[0] = metaFormat
	if m.leaving {
		out[1] = flagLeaving
	}
	binary.BigEndian.PutUint16(out[2:], uint16(m.commands)) //nolint:gosec // within maxCommands
	out[4] = byte(len(m.version))
	return append(out, m.version...)
}

var errMeta = errors.New("what the node says of itself cannot be read")

// decodeMeta reads the bytes of encode, and those of later programs.
func decodeMeta(b []byte) (meta, error) {
	if len(b) < metaHead || b[0] < metaFormat || len(b) < metaHead+int(b[4]) {
		return meta{}, fmt.Errorf("%w: %d bytes", errMeta, len(b))
	}
	return meta{b[1]&flagLeaving != 0, int(binary.BigEndian.Uint16(b[2:])), string(b[metaHead : metaHead+int(b[4])])}, nil
}
