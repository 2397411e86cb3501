// Package export turns the committed center into a model directory that Hugging Face's transformers loads: config.json and
// model.safetensors in Hugging Face's form, cut into several files with an index beyond MaxFileBytes. It moves bytes and
// computes nothing but the sums of weights with their adapters, so the daemon can do it.
package export

import (
	"archive/tar"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/avgpipe/avgpipe/internal/checkpoint"
	"github.com/avgpipe/avgpipe/internal/shard"
	"github.com/avgpipe/avgpipe/stage"
	"github.com/avgpipe/avgpipe/stage/layer"
	"github.com/avgpipe/avgpipe/stage/model"
)

// The files of a model directory.
const (
	ConfigFile  = "config.json"
	WeightsFile = "model.safetensors"
	IndexFile   = "model.safetensors.index.json" // in place of WeightsFile when there are several
)

// MaxFileBytes is the most bytes of tensors in one file, unless a single tensor has more: what Hugging Face's library puts
// into one, and what common file systems and web servers take.
const MaxFileBytes = 5_000_000_000

// metadata is what transformers asks for in a weights file.
var metadata = map[string]string{"format": "pt"}

// ShardMeta is what a worker writes into the header of every shard (elastic.ShardHeader.Meta), so that a shard says by itself
// which tensors its vectors hold.
type ShardMeta struct {
	Layers  [2]int         `json:"layers"`  // of the model: from, to (exclusive)
	Tensors []stage.Tensor `json:"tensors"` // where they lie in each vector
	// First is the first pipeline in the shard; the others follow on it. Of a job with several groups of pipelines, a shard has those of one.
	First int `json:"first,omitempty"`
	// Updates says, for each pipeline in the shard, how many updates its optimizer state has seen, or sees once what is in flight is applied: fewer than its steps when
	// it was restarted from a center alone. Absent in a shard without pipelines.
	Updates []uint64 `json:"updates,omitempty"`
	// InFlight is of how many layers of the model, from the input, the first vector of the averaging method is a mean gradient that is not applied yet.
	InFlight int `json:"in_flight,omitempty"`
	// Count is the number of pipelines whose updates are in the round.
	Count int `json:"count"`
	// Synchronous: the round after it is, for how far the stage's pipelines are from its center (averaging.max_drift).
	Synchronous bool `json:"synchronous,omitempty"`
	// Frozen is the digest of the shard that holds the stage's frozen parameters, in a vector of that name; empty: it has none.
	Frozen shard.Digest `json:"frozen,omitempty"`
	// Companions are the digests of the files that WriteCompanions kept, by name. Absent in older shards.
	Companions map[string]string `json:"companions,omitempty"`
}

// Pack writes a model directory to w as a tar archive: the center of a committed round, m's config and, from each stage's shard
// in store, its tensors; with the files that the job left beside it in dir (WriteCompanions), if there is one. Everything is read
// and checked before the first byte is written, and nothing is written elsewhere, so a model can be taken off a disk that
// is full. A notice, unless it is empty, goes into the card.
func Pack(ctx context.Context, w io.Writer, m *model.Model, store shard.Store, shards []shard.Digest, dir, notice string) error {
	if err := pack(ctx, w, m, store, shards, dir, notice, MaxFileBytes); err != nil {
		return fmt.Errorf("export: %w", err)
	}
	return nil
}

// pack is Pack with another limit for MaxFileBytes.
func pack(ctx context.Context, w io.Writer, m *model.Model, store shard.Store, shards []shard.Digest, dir, notice string, limit int64) error {
	all, err := collect(ctx, store, shards, m.NamesCopies())
	if err != nil {
		return err
	}
	if err := all.merge(m.Adapted()); err != nil {
		return err
	}
	shapes := make(map[string][]int, len(all.tensors))
	for _, t := range all.tensors {
		shapes[t.Name] = t.Shape
	}
	if err := m.CheckTensors(shapes); err != nil {
		return err
	}
	weights, err := weightFiles(all.tensors, limit, func(t checkpoint.Tensor, dst []float32, offset int) error {
		copy(dst, all.values[t.Name][offset:])
		return nil
	})
	if err != nil {
		return err
	}
	others, err := ReadCompanions(dir, all.companions)
	if err != nil {
		return err
	}
	if others[ConfigFile], err = label(others, m, notice); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(others)) {
		weights = append(weights, bytesFile(name, others[name]))
	}
	return writeArchive(w, weights)
}

// label makes m's config.json, in which the classes have the names that the card among files gives them, and puts a notice in the card.
func label(files map[string][]byte, m *model.Model, notice string) (config []byte, err error) {
	card := DefaultCard(m)
	if text := files[CardFile]; text != nil {
		if card, err = decodeCard(CardFile, text); err != nil {
			return nil, err
		}
	}
	if notice != "" {
		card.Notice = notice
		if files[CardFile], err = card.Encode(); err != nil {
			return nil, err
		}
	}
	object := m.Config()
	if labels := card.Data.Labels; object["id2label"] != nil && len(labels) == m.Loss.Classes {
		names, numbers := map[string]string{}, map[string]int{}
		for i, label := range labels {
			names[strconv.Itoa(i)], numbers[label] = label, i
		}
		object["id2label"], object["label2id"] = names, numbers
	}
	config, err = json.MarshalIndent(object, "", "  ")
	return append(config, '\n'), err
}

// weightFiles are the files of tensors, in order, each of at most limit bytes of them where it has more than one; and their
// index when there are several.
func weightFiles(tensors []checkpoint.Tensor, limit int64, read checkpoint.ReadTensor) ([]file, error) {
	parts := divide(tensors, limit)
	var files []file
	held := map[string][]checkpoint.Tensor{}
	for i, part := range parts {
		name := WeightsFile
		if len(parts) > 1 {
			name = fmt.Sprintf("model-%05d-of-%05d.safetensors", i+1, len(parts))
		}
		length, write, err := checkpoint.EncodeSafetensors(part, metadata, read)
		if err != nil {
			return nil, fmt.Errorf("encode %s: %w", name, err)
		}
		files, held[name] = append(files, file{name, length, write}), part
	}
	if len(parts) == 1 {
		return files, nil
	}
	index, err := checkpoint.EncodeIndex(held)
	if err != nil {
		return nil, err
	}
	return append(files, bytesFile(IndexFile, index)), nil
}

// divide cuts tensors into runs of at most limit bytes, but for single tensors that are larger.
func divide(tensors []checkpoint.Tensor, limit int64) [][]checkpoint.Tensor {
	parts, bytes := [][]checkpoint.Tensor{nil}, int64(0)
	for _, t := range tensors {
		n := 4 * int64(t.Elements())
		last := len(parts) - 1
		if len(parts[last]) > 0 && bytes+n > limit {
			parts, bytes, last = append(parts, nil), 0, last+1
		}
		parts[last], bytes = append(parts[last], t), bytes+n
	}
	return parts
}

type file struct {
	name   string
	length int64
	write  func(io.Writer) error
}

func bytesFile(name string, content []byte) file {
	return file{name, int64(len(content)), func(w io.Writer) error { _, err := w.Write(content); return err }}
}

func writeArchive(w io.Writer, files []file) error {
	out := tar.NewWriter(w)
	for _, f := range files {
		header := &tar.Header{Name: f.name, Mode: 0o644, Size: f.length, ModTime: time.Now(), Format: tar.FormatPAX}
		if err := out.WriteHeader(header); err != nil {
			return fmt.Errorf("%s: %w", f.name, err)
		}
		if err := f.write(out); err != nil {
			return fmt.Errorf("%s: %w", f.name, err)
		}
	}
	return out.Close()
}

// collected are the tensors of a committed round, and the digests of what goes with them.
type collected struct {
	tensors    []checkpoint.Tensor
	values     map[string][]float32
	companions map[string]string
	copies     bool // of tied tensors are among them
}

// collect reads the center's tensors, and the frozen ones, from the shards of all stages; copies of tied tensors too, or not.
func collect(ctx context.Context, store shard.Store, shards []shard.Digest, copies bool) (*collected, error) {
	all := &collected{values: map[string][]float32{}, copies: copies}
	for k, digest := range shards {
		meta, err := all.take(ctx, store, digest, shard.CenterVector, k, len(shards))
		if err == nil && meta.Frozen != "" {
			_, err = all.take(ctx, store, meta.Frozen, shard.FrozenVector, k, len(shards))
		}
		if err != nil {
			return nil, err
		}
		all.companions = meta.Companions
	}
	return all, nil
}

// take reads the tensors in a vector of a shard of stage k of stages.
func (all *collected) take(ctx context.Context, store shard.Store, digest shard.Digest, name string, k, stages int) (meta ShardMeta, err error) {
	vector, meta, err := readVector(ctx, store, digest, name, k, stages)
	if err != nil {
		return meta, err
	}
	for _, t := range meta.Tensors {
		if t.TiedTo != "" && !all.copies || layer.Again(t.Name, t.TiedTo) {
			continue
		}
		if t.Offset < 0 || t.Offset+t.Len() > len(vector) {
			return meta, fmt.Errorf("shard %s: tensor %q at %d, %d elements, in a vector of %d", digest, t.Name, t.Offset, t.Len(), len(vector))
		}
		all.tensors = append(all.tensors, checkpoint.Tensor{Name: t.Name, DType: checkpoint.F32, Shape: t.Shape})
		all.values[t.Name] = vector[t.Offset : t.Offset+t.Len()]
	}
	return meta, nil
}

// readVector reads a vector of a shard of stage k of stages, and what it holds.
func readVector(ctx context.Context, store shard.Store, digest shard.Digest, name string, k, stages int) (vector []float32, meta ShardMeta, err error) {
	err = shard.Read(ctx, store, digest, func(h *shard.Header) ([][]float32, error) {
		if h.Stage != k || h.Stages != stages {
			return nil, fmt.Errorf("is of stage %d of %d, expected %d of %d", h.Stage, h.Stages, k, stages)
		}
		if err := json.Unmarshal(h.Meta, &meta); err != nil {
			return nil, fmt.Errorf("meta: %w", err)
		}
		at := slices.IndexFunc(h.Vectors, func(v shard.Vector) bool { return v.Name == name })
		if at < 0 {
			return nil, fmt.Errorf("has no vector %q", name)
		}
		vector = make([]float32, h.Vectors[at].Elements)
		vectors := make([][]float32, len(h.Vectors))
		vectors[at] = vector
		return vectors, nil
	})
	return vector, meta, err
}
