package checkpoint

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
)

// Safetensors are the tensors of an open file, or of several with an index of which one holds which. All has been checked. Its reading
// methods may be called concurrently.
type Safetensors struct {
	open  Opener
	files []*tensorFile
	of    map[string]place
}

// Opener opens a file for reading: os.Open, or with the rights of a user.
type Opener func(path string) (*os.File, error)

// place is where a tensor is.
type place struct {
	file *tensorFile
	Tensor
}

// OpenSafetensors opens a file and checks its header: the length and JSON of it, every tensor's type, shape and place, and the file's
// length. A path that ends in .json is that of an index: it opens all files that this names, which lie beside it, and checks that together
// they hold exactly the tensors that it lists, each once. Errors name the file, what was found and what was expected. Nothing stays open
// after one. The caller closes what it returns.
func OpenSafetensors(path string, open Opener) (*Safetensors, error) {
	s := &Safetensors{open: open, of: map[string]place{}}
	var err error
	if filepath.Ext(path) == ".json" {
		err = s.openAll(path)
	} else {
		_, err = s.openFile(path)
	}
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// Verify reads those files through that EncodeSafetensors wrote, and holds them against the digests that they have.
func (s *Safetensors) Verify() error {
	for _, f := range s.files {
		if err := f.checkDigest(); err != nil {
			return fmt.Errorf("%s was not loaded: %w", f.path, err)
		}
	}
	return nil
}

// openFile opens and checks one file.
func (s *Safetensors) openFile(path string) (*tensorFile, error) {
	file, err := s.open(path)
	if err != nil {
		return nil, fmt.Errorf("open safetensors: %w", err)
	}
	f := &tensorFile{File: file, path: path}
	s.files = append(s.files, f)
	if err := f.check(); err != nil {
		return nil, fmt.Errorf("%s was not loaded: %w", path, err)
	}
	for _, t := range f.tensors {
		s.of[t.Name] = place{f, t}
	}
	return f, nil
}

// tensorFile is one file.
type tensorFile struct {
	*os.File
	path     string
	opened   os.FileInfo // as it was then
	base     int64       // where the tensors begin
	tensors  []Tensor
	metadata map[string]string
}

// check reads the header and verifies it.
func (f *tensorFile) check() error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	f.opened = info
	header, err := readTensorHeader(f, info.Size())
	if err != nil {
		return err
	}
	f.base = tensorPrefix + int64(len(header))
	f.tensors, f.metadata, err = parseTensorHeader(header, info.Size()-f.base)
	return err
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
func (f *tensorFile) checkDigest() error {
	expected, ok := f.metadata[DigestKey]
	if !ok {
		return nil
	}
	header := make([]byte, f.base-tensorPrefix)
	if _, err := f.ReadAt(header, tensorPrefix); err != nil {
		return fmt.Errorf("read for its digest: %w", err)
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
	end := f.base
	if n := len(f.tensors); n > 0 {
		end += f.tensors[n-1].end
	}
	if _, err := io.Copy(h, io.NewSectionReader(f, f.base, end-f.base)); err != nil {
		return fmt.Errorf("read for its digest: %w", err)
	}
	if found := hex.EncodeToString(h.Sum(nil)); found != expected {
		return fmt.Errorf("damaged: its digest is %s, expected %s; export it again or take another copy "+
			"(if another program rewrote the file on purpose, let it drop %s from the metadata)", found, expected, DigestKey)
	}
	return nil
}

// Digests are the SHA-256 of each file, by the file's name: of its header and of its tensors. Where these are longer than most bytes in all
// files together, only the beginning of each counts, with as much as makes that many.
func (s *Safetensors) Digests(most int64) (map[string]string, error) {
	total := int64(0)
	for _, p := range s.of {
		total += p.Bytes()
	}
	each := total
	if total > most {
		each = most / int64(len(s.of))
	}
	digests := map[string]string{}
	for _, f := range s.files {
		h := sha256.New()
		_, err := io.Copy(h, io.NewSectionReader(f, 0, f.base))
		for _, t := range f.tensors {
			if err == nil {
				_, err = io.Copy(h, io.NewSectionReader(f, f.base+t.begin, min(t.Bytes(), each)))
			}
		}
		if err != nil {
			return nil, fmt.Errorf("%s: read for its digest: %w", f.path, err)
		}
		digests[filepath.Base(f.path)] = hex.EncodeToString(h.Sum(nil))
	}
	return digests, nil
}

// Tensors are those of all files, in the order of their places.
func (s *Safetensors) Tensors() []Tensor {
	var all []Tensor
	for _, f := range s.files {
		all = append(all, f.tensors...)
	}
	return all
}

// Tensor returns one by name.
func (s *Safetensors) Tensor(name string) (Tensor, bool) {
	p, ok := s.of[name]
	return p.Tensor, ok
}

// Path is the file that holds a tensor.
func (s *Safetensors) Path(name string) string { return s.of[name].file.path }

// Bytes is what a tensor takes in its file.
func (t Tensor) Bytes() int64 { return t.end - t.begin }

// ReadF32 reads elements [offset, offset+len(dst)) of a tensor, row-major. The tensor must be of type F32, F16 or BF16, and the file
// as it was opened: what was checked is what is read.
func (s *Safetensors) ReadF32(name string, dst []float32, offset int) error {
	t, ok := s.of[name]
	if !ok {
		return fmt.Errorf("no tensor %q among the %d of %d files", name, len(s.of), len(s.files))
	}
	path := t.file.path
	decode, ok := decoders[t.DType]
	if !ok {
		return fmt.Errorf("%s: tensor %q is %s, expected F32, F16 or BF16: convert the file first (model.float() in PyTorch)",
			path, name, t.DType)
	}
	if offset < 0 || offset > t.Elements()-len(dst) {
		return fmt.Errorf("%s: tensor %q has %d elements, %d to %d were asked for", path, name, t.Elements(), offset, offset+len(dst))
	}
	size := int(dtypeBits[t.DType] / 8)
	raw := make([]byte, size*min(len(dst), tensorChunk))
	for len(dst) > 0 {
		n := min(len(dst), tensorChunk)
		if _, err := t.file.ReadAt(raw[:size*n], t.file.base+t.begin+int64(size)*int64(offset)); err != nil {
			return fmt.Errorf("%s: tensor %q at %d: %w", path, name, offset, err)
		}
		decode(dst[:n], raw)
		dst, offset = dst[n:], offset+n
	}
	if now, err := t.file.Stat(); err != nil || now.Size() != t.file.opened.Size() || !now.ModTime().Equal(t.file.opened.ModTime()) {
		return errors.Join(fmt.Errorf("%s: tensor %q: the file was overwritten while it was open; write another one, and rename it to this name", path, name), err)
	}
	return nil
}

// Float32 reports whether ReadF32 reads elements of this type.
func (t DType) Float32() bool { return decoders[t] != nil }

// decoders turn the bytes of len(dst) elements into float32.
var decoders = map[DType]func(dst []float32, raw []byte){
	F32: func(dst []float32, raw []byte) {
		_, _ = binary.Decode(raw, binary.LittleEndian, dst) // it fails for other lengths alone
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

// Close closes all files.
func (s *Safetensors) Close() error {
	var errs []error
	for _, f := range s.files {
		errs = append(errs, f.Close())
	}
	return errors.Join(errs...)
}
