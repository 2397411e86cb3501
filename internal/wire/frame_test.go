package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
)

func encoded(h Header, n int) []byte {
	b := make([]byte, headerBytes)
	h.encode(b, n)
	return b
}

// seal recomputes the checksum after a test has changed a header.
func seal(b []byte) []byte {
	binary.LittleEndian.PutUint32(b[44:], crc32.Checksum(b[:44], castagnoli))
	return b
}

func TestHeaderDamageIsReported(t *testing.T) {
	good := Header{Kind: Gradient, Generation: 9, Pipeline: 2, From: 3, To: 2, Step: 1 << 33, Micro: 17}
	tests := []struct {
		name, want string
		change     func(b []byte) []byte
	}{
		{"another magic", "starts with", func(b []byte) []byte { b[0] = 'X'; return seal(b) }},
		{"a later version", "version 3", func(b []byte) []byte { b[4] = 3; return seal(b) }},
		{"a flipped bit", "checksum", func(b []byte) []byte { b[20] ^= 1; return b }},
		{"an unknown kind", "kind 99", func(b []byte) []byte { b[5] = 99; return seal(b) }},
		{"a probe that is too short", "expected 8", func([]byte) []byte { return encoded(Header{Kind: probing}, 7) }},
		{"an answer that is too long", "expected 24", func([]byte) []byte { return encoded(Header{Kind: echoing}, 25) }},
		{"a negative micro-batch", "micro-batch -2", func(b []byte) []byte { b[12] = 0xfe; b[13], b[14], b[15] = 255, 255, 255; return seal(b) }},
		{"a length beyond the link's", "at most 1000", func([]byte) []byte { return encoded(good, 1001) }},
		{"a close frame beyond its bound", "at most 512", func([]byte) []byte { return encoded(Header{Kind: closing}, 513) }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, _, err := decodeHeader(tt.change(encoded(good, 1000)), 1000)
			if !errors.Is(err, errHeader) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("decode: %v, want %q", err, tt.want)
			}
		})
	}
}

// FuzzDecodeHeader holds the decoder to: no panic, no length beyond the bound, and whatever it accepts encodes to the same bytes.
func FuzzDecodeHeader(f *testing.F) {
	f.Add(encoded(Header{Kind: Activation, Generation: 1, To: 1, Micro: 3}, 64))
	f.Add(encoded(Header{Kind: Norm, Micro: -1, Step: 1 << 63}, 8))
	f.Add(encoded(Header{Kind: closing}, 512))
	f.Add(encoded(Header{Kind: probing, Generation: 1, To: 1, Micro: -1}, probeBytes))
	f.Add(encoded(Header{Kind: echoing, Generation: 1, To: 1, Micro: -1}, echoBytes))
	f.Add(seal(make([]byte, headerBytes)))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < headerBytes {
			return
		}
		b = b[:headerBytes]
		for _, candidate := range [][]byte{b, seal(bytes.Clone(b))} { // a random checksum never fits: also try with a right one
			const most = 1 << 20
			h, n, err := decodeHeader(candidate, most)
			if err != nil {
				continue
			}
			if n > most {
				t.Errorf("accepted %d bytes, at most %d", n, most)
			}
			if again := encoded(h, n); !bytes.Equal(again, candidate) {
				t.Errorf("accepted % x, which encodes as % x", candidate, again)
			}
		}
	})
}

// FuzzFrames holds the reader of frames to: no panic; memory only for headers that it accepts, and never more than the link carries; the same frames
// however the stream is cut; and what it accepts is what the stream says.
func FuzzFrames(f *testing.F) {
	two := slices.Concat(encoded(toUpper, 3), []byte("abc"), encoded(Header{Kind: Gradient, Generation: 1, From: 1, Micro: 2, Step: 9}, 0))
	f.Add(two)
	f.Add(two[:headerBytes+2])
	f.Add(slices.Concat(two, encoded(toUpper, maxFuzzed+1), make([]byte, 100)))
	f.Add(slices.Concat(encoded(testLink.header(probing, 1), probeBytes), make([]byte, probeBytes), two))
	f.Add(slices.Concat(encoded(testLink.header(echoing, 1), echoBytes), make([]byte, echoBytes), encoded(toUpper, -1)))
	f.Add(slices.Concat(encoded(testLink.header(closing, 1), 4), []byte("over"), two))
	f.Add(slices.Concat(encoded(Header{Kind: Norm, Generation: 2, To: 1}, 8), make([]byte, 8)))
	f.Fuzz(func(t *testing.T, stream []byte) {
		for _, candidate := range [][]byte{stream, sealAll(bytes.Clone(stream))} { // random checksums never fit: also try with right ones
			whole, failure := readFrames(t, bytes.NewReader(candidate))
			cut, failureCut := readFrames(t, iotest.OneByteReader(bytes.NewReader(candidate)))
			if !bytes.Equal(whole, cut) || failure.Error() != failureCut.Error() {
				t.Errorf("%d bytes and %q, cut into bytes %d and %q", len(whole), failure, len(cut), failureCut)
			}
			if !bytes.HasPrefix(candidate, whole) {
				t.Errorf("accepted % x, the stream is % x", whole, candidate)
			}
		}
	})
}

const maxFuzzed = 256 // bytes of a payload

// readFrames reads frames until an error and returns what they are encoded.
func readFrames(t *testing.T, r io.Reader) ([]byte, error) {
	t.Helper()
	made := 0
	s := Spec{Generation: 1, Depth: 1, MaxBytes: maxFuzzed, Memory: func(n int) []byte {
		if made++; n > maxReason {
			t.Errorf("%d bytes were asked for", n)
		}
		return nil
	}}
	e := &tcpEnd{queue: queue{spec: s, pool: newPool(s)}, link: testLink, reader: r}
	var all []byte
	for n := 0; ; n++ {
		f, err := e.readFrame(connSource{e.reader}, make([]byte, headerBytes))
		if err != nil {
			if most := n + 1; made > most || made > n && (errors.Is(err, errHeader) || errors.Is(err, ErrStale)) {
				t.Errorf("memory was taken %d times, for %d frames and %q", made, n, err)
			}
			return all, err
		}
		all = append(append(all, encoded(f.Header, len(f.Payload))...), f.Payload...)
	}
}

// sealAll recomputes the checksums of the headers in a stream.
func sealAll(stream []byte) []byte {
	for rest := stream; len(rest) >= headerBytes; {
		seal(rest[:headerBytes])
		n := binary.LittleEndian.Uint64(rest[32:])
		if rest = rest[headerBytes:]; n > uint64(len(rest)) {
			break
		}
		rest = rest[n:]
	}
	return stream
}

// FuzzHandshake holds the reader of the handshake to: no panic, and what it accepts comes back when it is written.
func FuzzHandshake(f *testing.F) {
	var b bytes.Buffer
	link := Link{Training, 1, 0, 1}
	if err := errors.Join(
		writeMessage(&b, link.header(opening, 3), hello{Job: "job", Purpose: link.Purpose, Timed: true}),
		writeMessage(&b, Header{Kind: answering, Generation: 3, Micro: -1}, reply{Verdict: early, Reason: "not yet"}),
	); err != nil {
		f.Fatal(err)
	}
	f.Add(b.Bytes())
	f.Fuzz(func(t *testing.T, b []byte) {
		r := bytes.NewReader(b)
		comesBack[hello](t, r, opening)
		comesBack[reply](t, r, answering)
	})
}

func comesBack[T comparable](t *testing.T, r io.Reader, kind Kind) {
	t.Helper()
	var m, same T
	h, err := readMessage(r, kind, &m)
	if err != nil {
		return
	}
	var again bytes.Buffer
	if err := writeMessage(&again, h, m); err != nil {
		t.Fatal(err)
	}
	if back, err := readMessage(&again, kind, &same); err != nil || back != h || same != m {
		t.Errorf("accepted %v %+v, which comes back as %v %+v: %v", h, m, back, same, err)
	}
}
