package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
)

// The frame header, little-endian (docs/formats.md, Frames):
//
//	 0  4  magic "AVGF"
//	 4  1  version
//	 5  1  kind
//	 6  2  pipeline
//	 8  2  from
//	10  2  to
//	12  4  micro-batch, signed
//	16  8  generation
//	24  8  step
//	32  8  payload bytes
//	40  4  when it was sent, in microseconds of the sender's clock modulo 2^32; 0: not said
//	44  4  CRC-32C of bytes 0 to 43
const (
	headerBytes  = 48
	frameMagic   = "AVGF"
	frameVersion = 2
	maxStage     = math.MaxUint16
	maxPayload   = 1 << 36 // 64 GiB: beyond it a length is damage, not data
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// errHeader is wrapped by every error about a header that cannot be one of ours.
var errHeader = errors.New("bad frame header")

// encode writes the header of a frame with a payload of n bytes to b, which holds headerBytes. It does not say when the frame was sent.
func (h Header) encode(b []byte, n int) { h.encodeSent(b, n, 0) }

// encodeSent is encode of a frame that was sent at a time.
func (h Header) encodeSent(b []byte, n int, sent uint32) {
	copy(b, frameMagic)
	b[4], b[5] = frameVersion, byte(h.Kind)
	binary.LittleEndian.PutUint16(b[6:], uint16(h.Pipeline))
	binary.LittleEndian.PutUint16(b[8:], uint16(h.From))
	binary.LittleEndian.PutUint16(b[10:], uint16(h.To))
	binary.LittleEndian.PutUint32(b[12:], uint32(int32(h.Micro)))
	binary.LittleEndian.PutUint64(b[16:], h.Generation)
	binary.LittleEndian.PutUint64(b[24:], h.Step)
	binary.LittleEndian.PutUint64(b[32:], uint64(n))
	binary.LittleEndian.PutUint32(b[40:], sent)
	binary.LittleEndian.PutUint32(b[44:], crc32.Checksum(b[:44], castagnoli))
}

// representable reports whether encode would keep every field.
func (h Header) representable() error {
	for _, v := range [...]int{h.Pipeline, h.From, h.To} {
		if v < 0 || v > maxStage {
			return fmt.Errorf("send %v: pipeline and stages must be 0 to %d", h, maxStage)
		}
	}
	if h.Micro < -1 || h.Micro > math.MaxInt32 {
		return fmt.Errorf("send %v: micro-batch must be -1 to %d", h, math.MaxInt32)
	}
	return nil
}

// decodeHeader checks the header in b, headerBytes long, and returns it with the payload's length: at most most, or
// maxReason for a close frame. Nothing is allocated for a length that is refused.
func decodeHeader(b []byte, most int) (Header, int, error) {
	if string(b[:4]) != frameMagic {
		return Header{}, 0, fmt.Errorf("%w: it starts with %q, want %q: the peer is no stage of a pipeline", errHeader, b[:4], frameMagic)
	}
	if sum, want := binary.LittleEndian.Uint32(b[44:]), crc32.Checksum(b[:44], castagnoli); sum != want {
		return Header{}, 0, fmt.Errorf("%w: checksum %08x, want %08x: damaged on the way", errHeader, sum, want)
	}
	if b[4] != frameVersion {
		return Header{}, 0, fmt.Errorf("%w: version %d, this program speaks %d: run the same release on all nodes", errHeader, b[4], frameVersion)
	}
	h := Header{
		Kind:       Kind(b[5]),
		Pipeline:   int(binary.LittleEndian.Uint16(b[6:])),
		From:       int(binary.LittleEndian.Uint16(b[8:])),
		To:         int(binary.LittleEndian.Uint16(b[10:])),
		Micro:      int(int32(binary.LittleEndian.Uint32(b[12:]))),
		Generation: binary.LittleEndian.Uint64(b[16:]),
		Step:       binary.LittleEndian.Uint64(b[24:]),
	}
	n := binary.LittleEndian.Uint64(b[32:])
	switch h.Kind { //nolint:exhaustive // payloads of others are as long as their link says
	case closing:
		most = maxReason
	case probing:
		most = probeBytes
	case echoing:
		most = echoBytes
	}
	switch {
	case h.Kind < Activation || h.Kind > offering:
		return Header{}, 0, fmt.Errorf("%w: kind %d, want %d to %d", errHeader, b[5], Activation, offering)
	case h.Micro < -1:
		return Header{}, 0, fmt.Errorf("%w: micro-batch %d, want -1 or more", errHeader, h.Micro)
	case (h.Kind == probing || h.Kind == echoing) && n != uint64(most):
		return Header{}, 0, fmt.Errorf("%w: %v has %d bytes, expected %d", errHeader, h, n, most)
	case n > uint64(most):
		return Header{}, 0, fmt.Errorf("%w: %v has %d bytes, this link carries at most %d", errHeader, h, n, most)
	}
	return h, int(n), nil
}

// sentOf is when the frame of a header that was decoded was sent, as encodeSent wrote it.
func sentOf(b []byte) uint32 { return binary.LittleEndian.Uint32(b[40:]) }
