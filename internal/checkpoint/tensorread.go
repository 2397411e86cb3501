package checkpoint

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
)

// Safetensors is an open safetensors file of which all has been checked. Its reading methods may be called concurrently.
type Safetensors struct {
	file     File
	path     string
	base     int64 // where the tensors begin
	tensors  []Tensor
	byName   map[string]int
	metadata map[string]string
}

// OpenSafetensors opens and checks a file: the header's length and JSON, every tensor's type, shape and place, and the file's
// length; and the digest of all of it when it was written by WriteSafetensors. Errors name the file, what was found and what
// was expected. The caller closes it.
func OpenSafetensors(fsys FS, path string) (*Safetensors, error) {
	return openSafetensors(fsys, path, (*Safetensors).checkDigest)
}

// OpenHeader is OpenSafetensors but for the digest: it reads nothing beside the header.
func OpenHeader(fsys FS, path string) (*Safetensors, error) {
	return openSafetensors(fsys, path, func(*Safetensors, []byte) error { return nil })
}

func openSafetensors(fsys FS, path string, rest func(s *Safetensors, header []byte) error) (*Safetensors, error) {
	file, err := fsys.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open safetensors: %w", err)
	}
	s := &Safetensors{file: file, path: path}
	if err := s.check(rest); err != nil {
		return nil, errors.Join(fmt.Errorf("%s was not loaded: %w", path, err), file.Close())
	}
	return s, nil
}

// check reads the header and verifies the file, and what rest does.
func (s *Safetensors) check(rest func(s *Safetensors, header []byte) error) error {
	info, err := s.file.Stat()
	if err != nil {
		return err
	}
	header, err := readTensorHeader(s.file, info.Size())
	if err != nil {
		return err
	}
	s.base = tensorPrefix + int64(len(header))
	s.tensors, s.metadata, err = parseTensorHeader(header, info.Size()-s.base)
	if err != nil {
		return err
	}
	s.byName = make(map[string]int, len(s.tensors))
	for i, t := range s.tensors {
		s.byName[t.Name] = i
	}
	return rest(s, header)
}

// readTensorHeader reads the header of a file of size bytes, allocating no more than the file holds.
func readTensorHeader(r io.ReaderAt, size int64) ([]byte, error) {
	var prefix [tensorPrefix]byte
	if size < tensorPrefix {
		return nil, fmt.Errorf("%d bytes, expected at least %d: not a safetensors file, or truncated", size, tensorPrefix)
	}
	if _, err := r.ReadAt(prefix[:], 0); err != nil {
		return nil, fmt.Errorf("read header length: %w", err)
	}
	length := binary.LittleEndian.Uint64(prefix[:])
	if length > maxTensorHeader || int64(length) > size-tensorPrefix {
		return nil, fmt.Errorf("the header claims %d bytes in a file of %d (limit %d): not a safetensors file, or truncated",
			length, size, maxTensorHeader)
	}
	header := make([]byte, length)
	if _, err := r.ReadAt(header, tensorPrefix); err != nil {
		return nil, fmt.Errorf("read header: %w", err)
	}
	return header, nil
}

// checkDigest reads the whole file, if it has a digest.
func (s *Safetensors) checkDigest(header []byte) error {
	expected, ok := s.metadata[DigestKey]
	if !ok {
		return nil
	}
	at := digestOffset(header)
	if at < 0 || len(expected) != 2*sha256.Size || string(header[at:at+len(expected)]) != expected {
		return fmt.Errorf("metadata %s is %q: expected %d hexadecimal digits", DigestKey, expected, 2*sha256.Size)
	}
	h := sha256.New()
	h.Write(binary.LittleEndian.AppendUint64(nil, uint64(len(header))))
	h.Write(header[:at])
	h.Write(bytes.Repeat([]byte("0"), len(expected)))
	h.Write(header[at+len(expected):])
	end := s.base
	if n := len(s.tensors); n > 0 {
		end += s.tensors[n-1].end
	}
	if _, err := io.Copy(h, io.NewSectionReader(s.file, s.base, end-s.base)); err != nil {
		return fmt.Errorf("read for its digest: %w", err)
	}
	if found := hex.EncodeToString(h.Sum(nil)); found != expected {
		return fmt.Errorf("damaged: its digest is %s, expected %s; export it again or take another copy "+
			"(if another program rewrote the file on purpose, let it drop %s from the metadata)", found, expected, DigestKey)
	}
	return nil
}

// Tensors are the file's tensors, in the order of their place in it.
func (s *Safetensors) Tensors() []Tensor { return slices.Clone(s.tensors) }

// Tensor returns one by name.
func (s *Safetensors) Tensor(name string) (Tensor, bool) {
	i, ok := s.byName[name]
	if !ok {
		return Tensor{}, false
	}
	return s.tensors[i], true
}

// Path is where the file is.
func (s *Safetensors) Path() string { return s.path }

// File is the one that holds a tensor: this, or nil.
func (s *Safetensors) File(name string) *Safetensors {
	if _, ok := s.byName[name]; !ok {
		return nil
	}
	return s
}

// Bytes is what a tensor takes in its file.
func (t Tensor) Bytes() int64 { return t.end - t.begin }

// Metadata is the file's free-form metadata.
func (s *Safetensors) Metadata() map[string]string { return maps.Clone(s.metadata) }

// ReadF32 reads elements [offset, offset+len(dst)) of a tensor, row-major. The tensor must be of type F32, F16 or BF16.
func (s *Safetensors) ReadF32(name string, dst []float32, offset int) error {
	t, ok := s.Tensor(name)
	if !ok {
		return fmt.Errorf("%s: no tensor %q among %d", s.path, name, len(s.tensors))
	}
	decode, ok := decoders[t.DType]
	if !ok {
		return fmt.Errorf("%s: tensor %q is %s, expected F32, F16 or BF16: convert the file first (model.float() in PyTorch)",
			s.path, name, t.DType)
	}
	if offset < 0 || offset > t.Elements()-len(dst) {
		return fmt.Errorf("%s: tensor %q has %d elements, %d to %d were asked for", s.path, name, t.Elements(), offset, offset+len(dst))
	}
	size := int(dtypeBits[t.DType] / 8)
	raw := make([]byte, size*min(len(dst), tensorChunk))
	for len(dst) > 0 {
		n := min(len(dst), tensorChunk)
		if _, err := s.file.ReadAt(raw[:size*n], s.base+t.begin+int64(size)*int64(offset)); err != nil {
			return fmt.Errorf("%s: tensor %q at %d: %w", s.path, name, offset, err)
		}
		decode(dst[:n], raw)
		dst, offset = dst[n:], offset+n
	}
	return nil
}

// Float32 reports whether ReadF32 reads elements of this type.
func (t DType) Float32() bool { return decoders[t] != nil }

// decoders turn the bytes of len(dst) elements into float32.
var decoders = map[DType]func(dst []float32, raw []byte){
	F32: func(dst []float32, raw []byte) {
		for i := range dst {
			dst[i] = math.Float32frombits(binary.LittleEndian.Uint32(raw[4*i:]))
		}
	},
	BF16: func(dst []float32, raw []byte) {
		for i := range dst {
			dst[i] = math.Float32frombits(uint32(binary.LittleEndian.Uint16(raw[2*i:])) << 16)
		}
	},
	F16: func(dst []float32, raw []byte) {
		for i := range dst {
			dst[i] = fromHalf(binary.LittleEndian.Uint16(raw[2*i:]))
		}
	},
}

// fromHalf is the value of an IEEE 754 binary16: 1 bit of sign, 5 of exponent with a bias of 15, 10 of fraction.
func fromHalf(h uint16) float32 {
	sign, exponent, fraction := uint32(h>>15)<<31, uint32(h>>10&0x1f), uint32(h&0x3ff)
	switch exponent {
	case 0: // zero, or below the normal range: a multiple of 2^-24
		return math.Float32frombits(sign | math.Float32bits(float32(fraction)/(1<<24)))
	case 0x1f:
		return math.Float32frombits(sign | 0xff<<23 | fraction<<13)
	}
	return math.Float32frombits(sign | (exponent+127-15)<<23 | fraction<<13)
}

// Close closes the file.
func (s *Safetensors) Close() error { return s.file.Close() }
