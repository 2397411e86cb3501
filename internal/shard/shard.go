package shard

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math"
	"slices"
	"unsafe"
)

// castagnoli is the polynomial of every checksum in this package.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// A shard file holds one stage of one committed round (docs/formats.md): magic, version, header length; a JSON header; the
// vectors, float32 little-endian, one after the other; a CRC-32C for each vector. Its length follows from its header.
const (
	shardMagic   = "AVGSHARD"
	shardVersion = 1
	shardPrefix  = 8 + 4 + 4 // magic, version, header length
	// maxShardHeader bounds the header, so that a damaged length allocates nothing: room for ten thousand vectors.
	maxShardHeader = 1 << 20
	// shardChunk is how many elements are moved at a time: 256 KiB.
	shardChunk = 64 << 10
)

// Vector names a vector of a shard.
type Vector struct {
	Name     string `json:"name"`
	Elements int    `json:"elements"`
}

// CenterVector names x~. Vectors are named by what they hold; pipelines and state vectors count from 0.
const CenterVector = "center"

// AveragingVector names a vector that the averaging method keeps from round to round, j from 0: they follow the center.
func AveragingVector(j int) string { return fmt.Sprintf("averaging.%d", j) }

// FrozenVector names the parameters that are not trained. A shard that has it has no other vector, and is of no round: every round of the
// job refers to it.
const FrozenVector = "frozen"

// ParametersVector names a pipeline's weights.
func ParametersVector(pipeline int) string { return fmt.Sprintf("pipeline.%d.parameters", pipeline) }

// PredictedVector has the weights that a pipeline computes its next batch with, where they are not its parameters.
func PredictedVector(pipeline int) string { return fmt.Sprintf("pipeline.%d.predicted", pipeline) }

// MessageVector has what a pipeline sent in the round, where its next step reads that again.
func MessageVector(pipeline int) string { return fmt.Sprintf("pipeline.%d.message", pipeline) }

// ResidualVector has what rounding has left out of a pipeline's messages, and is added to the next one.
func ResidualVector(pipeline int) string { return fmt.Sprintf("pipeline.%d.residual", pipeline) }

// StateVector names a state vector of a pipeline's optimizer.
func StateVector(pipeline, j int) string { return fmt.Sprintf("pipeline.%d.state.%d", pipeline, j) }

// Cursor is where a pipeline stands in its data: the batches it has consumed.
type Cursor struct {
	Pipeline int    `json:"pipeline"`
	Step     uint64 `json:"step"`
}

// Header says what a shard file holds.
type Header struct {
	Job        string          `json:"job"`
	Generation uint64          `json:"generation"`
	Round      uint64          `json:"round"`
	Stage      int             `json:"stage"`  // 0-based
	Stages     int             `json:"stages"` // K
	Vectors    []Vector        `json:"vectors"`
	Cursors    []Cursor        `json:"cursors"` // the optimizer steps that each pipeline had done
	Meta       json.RawMessage `json:"meta,omitempty"`
}

// Validate reports a header that no shard can have.
func (h *Header) Validate() error {
	if h.Stages < 1 || h.Stage < 0 || h.Stage >= h.Stages {
		return fmt.Errorf("shard header: stage %d of %d", h.Stage, h.Stages)
	}
	if len(h.Vectors) == 0 {
		return errors.New("shard header: no vectors")
	}
	seen := make(map[string]bool, len(h.Vectors))
	total := int64(0)
	for _, v := range h.Vectors {
		if v.Name == "" || seen[v.Name] {
			return fmt.Errorf("shard header: vector %q: names must be given and be distinct", v.Name)
		}
		seen[v.Name] = true
		if v.Elements < 0 || int64(v.Elements) > math.MaxInt64/8-total {
			return fmt.Errorf("shard header: vector %q: %d elements", v.Name, v.Elements)
		}
		total += int64(v.Elements)
	}
	return nil
}

// dataBytes is the length of what follows the header: vectors and their checksums. The header must be valid.
func (h *Header) dataBytes() int64 {
	bytes := 4 * int64(len(h.Vectors))
	for _, v := range h.Vectors {
		bytes += 4 * int64(v.Elements)
	}
	return bytes
}

// prefix is the file up to its vectors.
func (h *Header) prefix() ([]byte, error) {
	if err := h.Validate(); err != nil {
		return nil, err
	}
	header, err := json.Marshal(h)
	if err != nil {
		return nil, fmt.Errorf("shard header: %w", err)
	}
	// Spaces after the JSON align the vectors to 64 bytes, for readers that map the file.
	for (shardPrefix+len(header))%64 != 0 {
		header = append(header, ' ')
	}
	if len(header) > maxShardHeader {
		return nil, fmt.Errorf("shard header: %d bytes, more than the limit of %d", len(header), maxShardHeader)
	}
	out := append(make([]byte, 0, shardPrefix+len(header)), shardMagic...)
	out = binary.LittleEndian.AppendUint32(out, shardVersion)
	out = binary.LittleEndian.AppendUint32(out, uint32(len(header)))
	return append(out, header...), nil
}

// Bytes is the length of the file that Encode writes.
func Bytes(h *Header) (int64, error) {
	prefix, err := h.prefix()
	if err != nil {
		return 0, err
	}
	return int64(len(prefix)) + h.dataBytes(), nil
}

// Encode writes a shard with the vectors that its header lists.
func Encode(ctx context.Context, w io.Writer, h *Header, vectors [][]float32) error {
	prefix, err := h.prefix()
	if err != nil {
		return err
	}
	if _, err := w.Write(prefix); err != nil {
		return fmt.Errorf("write shard header: %w", err)
	}
	var sums []byte
	raw := make([]byte, 4*shardChunk)
	for i, v := range h.Vectors {
		if len(vectors[i]) != v.Elements {
			return fmt.Errorf("vector %q has %d elements, its header says %d", v.Name, len(vectors[i]), v.Elements)
		}
		sum := uint32(0)
		for chunk := range slices.Chunk(vectors[i], shardChunk) {
			text, err := littleEndian(chunk, raw)
			if err = errors.Join(err, ctx.Err()); err != nil {
				return fmt.Errorf("vector %q: %w", v.Name, err)
			}
			sum = crc32.Update(sum, castagnoli, text)
			if _, err := w.Write(text); err != nil {
				return fmt.Errorf("write vector %q: %w", v.Name, err)
			}
		}
		sums = binary.LittleEndian.AppendUint32(sums, sum)
	}
	if _, err := w.Write(sums); err != nil {
		return fmt.Errorf("write shard checksums: %w", err)
	}
	return nil
}

// littleEndian are the bytes of values as files have them: those of the memory where the processor has the same order, else copied to room.
func littleEndian(values []float32, room []byte) ([]byte, error) {
	if binary.NativeEndian.Uint16([]byte{1, 0}) == 1 {
		return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(values))), 4*len(values)), nil
	}
	n, err := binary.Encode(room, binary.LittleEndian, values)
	return room[:n], err
}

// readHeader reads and checks the header of a shard in a file of size bytes. Nothing is allocated that the file could not fill.
func readHeader(r io.Reader, size int64) (*Header, error) {
	var prefix [shardPrefix]byte
	if _, err := io.ReadFull(r, prefix[:]); err != nil {
		return nil, fmt.Errorf("%d bytes: expected at least the %d of a shard's prefix: %w", size, shardPrefix, err)
	}
	if string(prefix[:8]) != shardMagic {
		return nil, fmt.Errorf("starts with %q, expected %q: not a shard", prefix[:8], shardMagic)
	}
	if v := binary.LittleEndian.Uint32(prefix[8:]); v != shardVersion {
		return nil, fmt.Errorf("version %d, this program reads %d", v, shardVersion)
	}
	length := int64(binary.LittleEndian.Uint32(prefix[12:]))
	if length > maxShardHeader || length > size-shardPrefix {
		return nil, fmt.Errorf("header claims %d bytes in a file of %d, limit %d: damaged", length, size, maxShardHeader)
	}
	text := make([]byte, length)
	if _, err := io.ReadFull(r, text); err != nil {
		return nil, fmt.Errorf("header: %w", err)
	}
	var h Header
	decoder := json.NewDecoder(bytes.NewReader(bytes.TrimRight(text, " ")))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&h); err != nil {
		return nil, fmt.Errorf("header: %w", err)
	}
	if decoder.More() {
		return nil, errors.New("header: more than one JSON value")
	}
	if err := h.Validate(); err != nil {
		return nil, err
	}
	if expected := shardPrefix + length + h.dataBytes(); size != expected {
		return nil, fmt.Errorf("%d bytes, expected %d by its header: truncated or damaged", size, expected)
	}
	return &h, nil
}

// Decode reads a shard of size bytes: it hands the header to accept, and fills the memory that accept returns for each vector; nil is
// skipped. A vector whose checksum is wrong is an error, after its memory was filled: Read verifies the file's digest first.
func Decode(ctx context.Context, r io.Reader, size int64, accept func(h *Header) ([][]float32, error)) error {
	h, err := readHeader(r, size)
	if err != nil {
		return err
	}
	vectors, err := accept(h)
	if err != nil {
		return err
	}
	sums := make([]uint32, len(h.Vectors))
	raw := make([]byte, 4*shardChunk)
	for i, v := range h.Vectors {
		for offset := 0; offset < v.Elements; offset += shardChunk {
			chunk := raw[:4*min(shardChunk, v.Elements-offset)]
			if _, err := io.ReadFull(r, chunk); err != nil {
				return fmt.Errorf("vector %q at %d: %w", v.Name, offset, err)
			}
			if err := ctx.Err(); err != nil {
				return fmt.Errorf("vector %q at %d: %w", v.Name, offset, err)
			}
			sums[i] = crc32.Update(sums[i], castagnoli, chunk)
			if vectors[i] == nil {
				continue
			}
			if _, err := binary.Decode(chunk, binary.LittleEndian, vectors[i][offset:offset+len(chunk)/4]); err != nil {
				return fmt.Errorf("vector %q at %d: %w", v.Name, offset, err)
			}
		}
	}
	for i, v := range h.Vectors {
		if _, err := io.ReadFull(r, raw[:4]); err != nil {
			return fmt.Errorf("checksum of vector %q: %w", v.Name, err)
		}
		if expected := binary.LittleEndian.Uint32(raw); sums[i] != expected {
			return fmt.Errorf("vector %q: checksum is %08x, expected %08x: damaged", v.Name, sums[i], expected)
		}
	}
	return nil
}
