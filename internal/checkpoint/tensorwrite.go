package checkpoint

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math"
	"path/filepath"
	"slices"
	"strings"
)

// DigestKey is the metadata key under which WriteSafetensors keeps the file's SHA-256, in hexadecimal: that of the file with
// these 64 digits replaced by zeros. The format has no checksum of its own; other readers ignore the key.
const DigestKey = "avgpipe.sha256"

// tensorChunk is how many elements are moved at a time: 256 KiB.
const tensorChunk = 64 << 10

// ReadTensor fills dst with elements [offset, offset+len(dst)) of a tensor, row-major.
type ReadTensor func(t Tensor, dst []float32, offset int) error

// WriteSafetensors writes float32 tensors to the file path, atomically. It asks read for each tensor in runs. Tensors are laid out
// by name, as the reference implementation does for tensors of one type. metadata is kept in the file; {"format": "pt"}
// makes Python libraries accept it.
func WriteSafetensors(fsys FS, path string, perm fs.FileMode, tensors []Tensor, metadata map[string]string, read ReadTensor) error {
	laid, header, needed, err := prepare(tensors, metadata)
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	f, err := Create(fsys, filepath.Dir(path), perm, needed)
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	if err := writeTensors(f, header, laid, read); err != nil {
		return errors.Join(fmt.Errorf("write %s: %w", path, err), f.Abort())
	}
	return f.Commit(filepath.Base(path))
}

// EncodeSafetensors is WriteSafetensors for a stream: it returns the length in bytes, and a function that writes as many. Since the
// digest stands at the front, it asks read for everything twice, the first time before it returns.
func EncodeSafetensors(tensors []Tensor, metadata map[string]string, read ReadTensor) (length int64, write func(io.Writer) error, err error) {
	laid, header, length, err := prepare(tensors, metadata)
	if err != nil {
		return 0, nil, err
	}
	digest := sha256.New()
	digest.Write(header) // never fails, by its contract
	if err := encodeTensors(digest, laid, read); err != nil {
		return 0, nil, err
	}
	copy(header[digestOffset(header):], hex.EncodeToString(digest.Sum(nil)))
	return length, func(w io.Writer) error {
		if _, err := w.Write(header); err != nil {
			return err
		}
		return encodeTensors(w, laid, read)
	}, nil
}

// prepare lays a file out: its tensors, its header with zeros for the digest, and its length.
func prepare(tensors []Tensor, metadata map[string]string) (laid []Tensor, header []byte, length int64, err error) {
	if laid, err = layOut(tensors); err != nil {
		return nil, nil, 0, err
	}
	metadata = maps.Clone(metadata)
	if metadata == nil {
		metadata = map[string]string{}
	}
	metadata[DigestKey] = strings.Repeat("0", 2*sha256.Size)
	if header, err = tensorHeader(laid, metadata); err != nil {
		return nil, nil, 0, err
	}
	length = int64(len(header))
	if n := len(laid); n > 0 {
		length += laid[n-1].end
	}
	return laid, header, length, nil
}

// layOut gives each tensor its place.
func layOut(tensors []Tensor) ([]Tensor, error) {
	laid := slices.Clone(tensors)
	slices.SortFunc(laid, func(a, b Tensor) int { return strings.Compare(a.Name, b.Name) })
	at := int64(0)
	for i := range laid {
		t := &laid[i]
		if t.Name == "" || t.Name == metadataKey || (i > 0 && t.Name == laid[i-1].Name) {
			return nil, fmt.Errorf("tensor %q: names must be given and be distinct", t.Name)
		}
		if t.DType != "" && t.DType != F32 {
			return nil, fmt.Errorf("tensor %q: dtype %s, only F32 is written", t.Name, t.DType)
		}
		for _, d := range t.Shape {
			if d < 0 {
				return nil, fmt.Errorf("tensor %q: shape %v", t.Name, t.Shape)
			}
		}
		t.DType = F32
		t.begin = at
		at += 4 * int64(t.Elements())
		t.end = at
	}
	return laid, nil
}

// writeTensors writes header and tensors, and then the digest of all of it into its place in the header.
func writeTensors(f *AtomicFile, header []byte, tensors []Tensor, read ReadTensor) error {
	digest := sha256.New()
	w := io.MultiWriter(digest, f)
	if _, err := w.Write(header); err != nil {
		return err
	}
	if err := encodeTensors(w, tensors, read); err != nil {
		return err
	}
	sum := []byte(hex.EncodeToString(digest.Sum(nil)))
	_, err := f.WriteAt(sum, int64(digestOffset(header)))
	return err
}

// encodeTensors writes the tensors' values, in order.
func encodeTensors(w io.Writer, tensors []Tensor, read ReadTensor) error {
	floats := make([]float32, tensorChunk)
	raw := make([]byte, 4*tensorChunk)
	for _, t := range tensors {
		for offset := 0; offset < t.Elements(); offset += tensorChunk {
			n := min(tensorChunk, t.Elements()-offset)
			if err := read(t, floats[:n], offset); err != nil {
				return fmt.Errorf("tensor %q at %d: %w", t.Name, offset, err)
			}
			for i, v := range floats[:n] {
				binary.LittleEndian.PutUint32(raw[4*i:], math.Float32bits(v))
			}
			if _, err := w.Write(raw[:4*n]); err != nil {
				return fmt.Errorf("tensor %q at %d: %w", t.Name, offset, err)
			}
		}
	}
	return nil
}

// digestOffset is where the digest's digits are in a header, or -1.
func digestOffset(header []byte) int {
	key := []byte(`"` + DigestKey + `":"`)
	if at := bytes.Index(header, key); at >= 0 && at+len(key)+2*sha256.Size <= len(header) {
		return at + len(key)
	}
	return -1
}
