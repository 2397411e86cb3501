package checkpoint

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
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

// WriteSafetensors writes float32 tensors to the file path, atomically. It asks read for each tensor in runs: read fills dst with elements
// [offset, offset+len(dst)) of the tensor, row-major. Tensors are laid out by name, as the reference implementation does for
// tensors of one type. metadata is kept in the file; {"format": "pt"} makes Python libraries accept it.
func WriteSafetensors(fsys FS, path string, perm fs.FileMode, tensors []Tensor, metadata map[string]string,
	read func(t Tensor, dst []float32, offset int) error,
) error {
	laid, err := layOut(tensors)
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	metadata = maps.Clone(metadata)
	if metadata == nil {
		metadata = map[string]string{}
	}
	zeros := strings.Repeat("0", 2*sha256.Size)
	metadata[DigestKey] = zeros
	header, err := tensorHeader(laid, metadata)
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	needed := int64(len(header))
	if n := len(laid); n > 0 {
		needed += laid[n-1].end
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
func writeTensors(f *AtomicFile, header []byte, tensors []Tensor, read func(t Tensor, dst []float32, offset int) error) error {
	digest := sha256.New()
	emit := func(p []byte) error {
		digest.Write(p) // never fails, by its contract
		_, err := f.Write(p)
		return err
	}
	if err := emit(header); err != nil {
		return err
	}
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
			if err := emit(raw[:4*n]); err != nil {
				return fmt.Errorf("tensor %q at %d: %w", t.Name, offset, err)
			}
		}
	}
	sum := []byte(hex.EncodeToString(digest.Sum(nil)))
	_, err := f.WriteAt(sum, int64(digestOffset(header)))
	return err
}

// digestOffset is where the digest's digits are in a header, or -1.
func digestOffset(header []byte) int {
	key := []byte(`"` + DigestKey + `":"`)
	if at := bytes.Index(header, key); at >= 0 && at+len(key)+2*sha256.Size <= len(header) {
		return at + len(key)
	}
	return -1
}
