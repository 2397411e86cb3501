package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
)

// The handshake, little-endian (docs/formats.md, Frames). The dialling end sends a hello:
//
//	 0  4  magic "AVGH"
//	 4  1  version
//	 5  1  purpose
//	 6  2  pipeline
//	 8  2  lower stage
//	10  2  upper stage
//	12  1  length of the job's name
//	13  3  reserved, 0
//	16  8  generation
//	24  n  the job's name
//	 .  4  CRC-32C of all bytes before
//
// and the listening end answers:
//
//	 0  4  magic "AVGR"
//	 4  1  version
//	 5  1  verdict
//	 6  2  length of the reason
//	 8  8  generation
//	16  n  the reason, when refused
//	 .  4  CRC-32C of all bytes before
const (
	helloMagic = "AVGH"
	replyMagic = "AVGR"
	helloFixed = 24
	replyFixed = 16
	maxJob     = 255
	maxReason  = 512
)

type verdict uint8

const (
	accepted verdict = iota
	refused          // for good
	stale            // the dialling end is of an earlier generation
	early            // the dialling end is of a later generation, or the link is not expected yet: try again
)

// hello opens a connection.
type hello struct {
	job        string
	generation uint64
	link       Link
}

func (h hello) encode() []byte {
	b := make([]byte, helloFixed, helloFixed+len(h.job)+4)
	copy(b, helloMagic)
	b[4], b[5] = frameVersion, byte(h.link.Purpose)
	binary.LittleEndian.PutUint16(b[6:], uint16(h.link.Pipeline))
	binary.LittleEndian.PutUint16(b[8:], uint16(h.link.Lower))
	binary.LittleEndian.PutUint16(b[10:], uint16(h.link.Upper))
	b[12] = byte(len(h.job))
	binary.LittleEndian.PutUint64(b[16:], h.generation)
	b = append(b, h.job...)
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

// readHello reads at most helloFixed + maxJob + 4 bytes.
func readHello(r io.Reader) (hello, error) {
	fixed, rest, err := readParts(r, helloMagic, helloFixed, func(b []byte) int { return int(b[12]) })
	if err != nil {
		return hello{}, err
	}
	h := hello{
		job:        string(rest),
		generation: binary.LittleEndian.Uint64(fixed[16:]),
		link: Link{
			Purpose:  Purpose(fixed[5]),
			Pipeline: int(binary.LittleEndian.Uint16(fixed[6:])),
			Lower:    int(binary.LittleEndian.Uint16(fixed[8:])),
			Upper:    int(binary.LittleEndian.Uint16(fixed[10:])),
		},
	}
	if h.link.Purpose < Training || h.link.Purpose > Evaluated || fixed[13]|fixed[14]|fixed[15] != 0 {
		return hello{}, fmt.Errorf("%w: purpose %d, reserved %v", errHandshake, fixed[5], fixed[13:16])
	}
	return h, nil
}

// reply answers a hello.
type reply struct {
	verdict    verdict
	generation uint64
	reason     string
}

func (r reply) encode() []byte {
	reason := r.reason[:min(len(r.reason), maxReason)]
	b := make([]byte, replyFixed, replyFixed+len(reason)+4)
	copy(b, replyMagic)
	b[4], b[5] = frameVersion, byte(r.verdict)
	binary.LittleEndian.PutUint16(b[6:], uint16(len(reason)))
	binary.LittleEndian.PutUint64(b[8:], r.generation)
	b = append(b, reason...)
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

func readReply(r io.Reader) (reply, error) {
	fixed, rest, err := readParts(r, replyMagic, replyFixed, func(b []byte) int { return int(binary.LittleEndian.Uint16(b[6:])) })
	if err != nil {
		return reply{}, err
	}
	answer := reply{verdict: verdict(fixed[5]), generation: binary.LittleEndian.Uint64(fixed[8:]), reason: string(rest)}
	if answer.verdict > early {
		return reply{}, fmt.Errorf("%w: verdict %d", errHandshake, fixed[5])
	}
	return answer, nil
}

// errHandshake is wrapped by every error about bytes that are not a handshake of ours.
var errHandshake = errors.New("bad handshake")

// readParts reads a fixed part, a text whose length it gives (at most maxReason), and the checksum of both.
func readParts(r io.Reader, magic string, size int, length func(fixed []byte) int) (fixed, text []byte, err error) {
	b := make([]byte, size+maxReason+4)
	fixed = b[:size]
	if _, err := io.ReadFull(r, fixed); err != nil {
		return nil, nil, fmt.Errorf("read handshake: %w", err)
	}
	if string(fixed[:4]) != magic {
		return nil, nil, fmt.Errorf("%w: it starts with %q, want %q: no avgpiped at the other end, or TLS on one side only",
			errHandshake, fixed[:4], magic)
	}
	n := length(fixed)
	if n > maxReason {
		return nil, nil, fmt.Errorf("%w: text of %d bytes, at most %d", errHandshake, n, maxReason)
	}
	if _, err := io.ReadFull(r, b[size:size+n+4]); err != nil {
		return nil, nil, fmt.Errorf("read handshake: %w", err)
	}
	sum, want := binary.LittleEndian.Uint32(b[size+n:]), crc32.Checksum(b[:size+n], castagnoli)
	switch {
	case sum != want:
		return nil, nil, fmt.Errorf("%w: checksum %08x, want %08x", errHandshake, sum, want)
	case fixed[4] != frameVersion:
		return nil, nil, fmt.Errorf("%w: version %d, this program speaks %d: run the same release on all nodes",
			errHandshake, fixed[4], frameVersion)
	}
	return fixed, b[size : size+n], nil
}
