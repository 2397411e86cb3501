package checkpoint

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
)

// The safetensors format (its specification is the README of the project of that name): the length of the header, a
// little-endian uint64; the header, JSON, padded with spaces; the tensors, little-endian, in the order of their offsets, without
// gaps or overlaps.
const (
	tensorPrefix = 8
	// maxTensorHeader is the limit that the reference implementation sets.
	maxTensorHeader = 100_000_000
	metadataKey     = "__metadata__"
)

// DType is the type of a tensor's elements, in the format's spelling.
type DType string

// F32 is the type that this package writes. F16 and BF16 widen to it without loss, so it reads all three as float32.
const (
	F32  DType = "F32"
	F16  DType = "F16"
	BF16 DType = "BF16"
)

// dtypeBits is the size of an element of every type in the format, so that a file's layout can be checked whatever it holds.
var dtypeBits = map[DType]int64{
	"BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
	"I16": 16, "U16": 16, F16: 16, BF16: 16,
	"I32": 32, "U32": 32, F32: 32,
	"F64": 64, "I64": 64, "U64": 64, "C64": 64,
	"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
}

// Tensor describes a tensor in a file.
type Tensor struct {
	Name  string
	DType DType
	Shape []int // row-major; empty for a scalar
	begin int64 // first byte, from the start of the tensors
	end   int64 // one past the last
}

// Elements is the product of the shape.
func (t Tensor) Elements() int {
	n := 1
	for _, d := range t.Shape {
		n *= d
	}
	return n
}

// tensorEntry is a tensor in the JSON header. Pointers tell absent from zero.
type tensorEntry struct {
	DType   *DType   `json:"dtype"`
	Shape   *[]int64 `json:"shape"`
	Offsets *[]int64 `json:"data_offsets"`
}

// parseTensorHeader checks a header against the bytes of tensors that follow it, and returns the tensors by offset.
func parseTensorHeader(header []byte, dataBytes int64) ([]Tensor, map[string]string, error) {
	if len(header) == 0 || header[0] != '{' {
		return nil, nil, fmt.Errorf("the header starts with %q, expected \"{\"", header[:min(1, len(header))])
	}
	entries, err := objectEntries(header)
	if err != nil {
		return nil, nil, err
	}
	var (
		tensors  []Tensor
		metadata map[string]string
	)
	for _, e := range entries {
		if e.key == metadataKey {
			if err := json.Unmarshal(e.value, &metadata); err != nil {
				return nil, nil, fmt.Errorf("%s: expected an object of strings: %w", metadataKey, err)
			}
			continue
		}
		t, err := parseTensor(e.key, e.value)
		if err != nil {
			return nil, nil, err
		}
		tensors = append(tensors, t)
	}
	// By begin, then end, so that empty tensors come before the one that starts where they lie.
	slices.SortStableFunc(tensors, func(a, b Tensor) int {
		return cmp.Or(cmp.Compare(a.begin, b.begin), cmp.Compare(a.end, b.end))
	})
	at := int64(0)
	for _, t := range tensors {
		if t.begin != at {
			return nil, nil, fmt.Errorf("tensor %q begins at %d, expected %d: tensors must follow each other without gap or overlap",
				t.Name, t.begin, at)
		}
		at = t.end
	}
	if at != dataBytes {
		return nil, nil, fmt.Errorf("the tensors take %d bytes, the file has %d for them: truncated or damaged", at, dataBytes)
	}
	return tensors, metadata, nil
}

// objectEntry is one key of a JSON object and its value.
type objectEntry struct {
	key   string
	value json.RawMessage
}

// objectEntries reads a JSON object and refuses a key that is there twice, which encoding/json would not notice.
func objectEntries(text []byte) ([]objectEntry, error) {
	d := json.NewDecoder(bytes.NewReader(text))
	if _, err := d.Token(); err != nil {
		return nil, fmt.Errorf("header: %w", err)
	}
	var entries []objectEntry
	seen := map[string]bool{}
	for d.More() {
		token, err := d.Token()
		if err != nil {
			return nil, fmt.Errorf("header: %w", err)
		}
		key, ok := token.(string)
		if !ok || seen[key] {
			return nil, fmt.Errorf("header: key %v: expected a name that is there once", token)
		}
		seen[key] = true
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			return nil, fmt.Errorf("header: %q: %w", key, err)
		}
		entries = append(entries, objectEntry{key, value})
	}
	if _, err := d.Token(); err != nil {
		return nil, fmt.Errorf("header: %w", err)
	}
	if rest := strings.TrimLeft(string(text[d.InputOffset():]), " "); rest != "" {
		return nil, fmt.Errorf("header: %q after its end, expected spaces only", rest[:min(len(rest), 16)])
	}
	return entries, nil
}

// parseTensor reads one tensor's entry and checks it by itself.
func parseTensor(name string, value json.RawMessage) (Tensor, error) {
	fail := func(format string, args ...any) (Tensor, error) {
		return Tensor{}, fmt.Errorf("tensor %q: %s", name, fmt.Sprintf(format, args...))
	}
	var e tensorEntry
	d := json.NewDecoder(bytes.NewReader(value))
	d.DisallowUnknownFields()
	if err := d.Decode(&e); err != nil {
		return fail("%s", err)
	}
	if e.DType == nil || e.Shape == nil || e.Offsets == nil {
		return fail("%s: expected dtype, shape and data_offsets", value)
	}
	bits, ok := dtypeBits[*e.DType]
	if !ok {
		return fail("dtype %q is not of the format", string(*e.DType))
	}
	if len(*e.Offsets) != 2 || (*e.Offsets)[0] < 0 || (*e.Offsets)[1] < (*e.Offsets)[0] {
		return fail("data_offsets %v: expected [begin, end]", *e.Offsets)
	}
	t := Tensor{Name: name, DType: *e.DType, begin: (*e.Offsets)[0], end: (*e.Offsets)[1]}
	size := bits
	for _, d := range *e.Shape {
		if d < 0 || (d > 0 && size > math.MaxInt64/d) {
			return fail("shape %v: negative or too large", *e.Shape)
		}
		size *= d
		t.Shape = append(t.Shape, int(d))
	}
	if size%8 != 0 || t.end-t.begin != size/8 {
		return fail("data_offsets %v hold %d bytes, %s%v takes %d", *e.Offsets, t.end-t.begin, t.DType, t.Shape, (size+7)/8)
	}
	return t, nil
}

// tensorHeader makes the file's first bytes, padded so that the tensors are aligned to 8 bytes.
func tensorHeader(tensors []Tensor, metadata map[string]string) ([]byte, error) {
	type entry struct {
		DType   DType    `json:"dtype"`
		Shape   []int    `json:"shape"`
		Offsets [2]int64 `json:"data_offsets"`
	}
	entries := map[string]any{metadataKey: metadata}
	for _, t := range tensors {
		entries[t.Name] = entry{t.DType, append([]int{}, t.Shape...), [2]int64{t.begin, t.end}}
	}
	text, err := json.Marshal(entries)
	if err != nil {
		return nil, fmt.Errorf("encode the header: %w", err)
	}
	for (tensorPrefix+len(text))%8 != 0 {
		text = append(text, ' ')
	}
	if len(text) > maxTensorHeader {
		return nil, fmt.Errorf("the header takes %d bytes, the format's limit is %d", len(text), maxTensorHeader)
	}
	return append(binary.LittleEndian.AppendUint64(nil, uint64(len(text))), text...), nil
}
