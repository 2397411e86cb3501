package checkpoint

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
)

// DigestKey is the metadata key under which EncodeSafetensors keeps the file's SHA-256, in hexadecimal: that of the file with
// these 64 digits replaced by zeros. The format has no checksum of its own; other readers ignore the key.
const DigestKey = "avgpipe.sha256"

// tensorChunk is how many elements are moved at a time: 256 KiB.
const tensorChunk = 64 << 10

// ReadTensor fills dst with elements [offset, offset+len(dst)) of a tensor, row-major.
type ReadTensor func(t Tensor, dst []float32, offset int) error

// EncodeSafetensors returns the length in bytes of a file of float32 tensors, and a function that writes it. It asks read for each
// tensor in chunks: for everything twice, the first time before it returns, since the digest stands at the front. Tensors are laid
// out by name, as the reference implementation does for tensors of one type. metadata is kept in the file; {"format": "pt"} makes
// Python libraries accept it.
func EncodeSafetensors(tensors []Tensor, metadata map[string]string, read ReadTensor) (length int64, write func(io.Writer) error, err error) {
	laid, err := layOut(tensors)
	if err != nil {
		return 0, nil, err
	}
	marked := map[string]string{DigestKey: strings.Repeat("0", 2*sha256.Size)}
	maps.Copy(marked, metadata)
	header, err := tensorHeader(laid, marked)
	if err != nil {
		return 0, nil, err
	}
	length = int64(len(header))
	if n := len(laid); n > 0 {
		length += laid[n-1].end
	}
	write = func(w io.Writer) error {
		if _, err := w.Write(header); err != nil {
			return err
		}
		return encodeTensors(w, laid, read)
	}
	digest := sha256.New()
	if err := write(digest); err != nil {
		return 0, nil, err
	}
	copy(header[digestOffset(header):], hex.EncodeToString(digest.Sum(nil)))
	return length, write, nil
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
			_, err := binary.Encode(raw, binary.LittleEndian, floats[:n])
			if err == nil {
				_, err = w.Write(raw[:4*n])
			}
			if err != nil {
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
