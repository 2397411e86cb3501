package export_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/internal/checkpoint"
	"github.com/avgpipe/avgpipe/internal/export"
	"github.com/avgpipe/avgpipe/internal/export/exporttest"
	"github.com/avgpipe/avgpipe/internal/modeldir"
	"github.com/avgpipe/avgpipe/internal/shard"
	"github.com/avgpipe/avgpipe/stage"
	"github.com/avgpipe/avgpipe/stage/device/ref"
	"github.com/avgpipe/avgpipe/stage/model"
)

func tinyModel(t *testing.T) *model.Model {
	t.Helper()
	m, err := model.Build("gpt2", map[string]any{"n_layer": 2, "n_head": 2, "n_embd": 8, "n_positions": 4, "vocab_size": 11})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// writeShards puts one shard a stage into a new store, each with the initial weights of its stage as the center, and returns
// those weights by tensor name.
func writeShards(t *testing.T, m *model.Model, stages int, companions ...map[string]string) (shard.Store, []shard.Digest, map[string][]float32) {
	t.Helper()
	store, err := shard.OpenStore(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	ranges, err := stage.Split(make([]float64, len(m.Layers)), stages)
	if err != nil {
		t.Fatal(err)
	}
	dev := ref.New()
	values := map[string][]float32{}
	var digests []shard.Digest
	for k, r := range ranges {
		s, err := stage.New(stage.Config{Device: dev, Model: m, Range: r, Index: k, Count: stages, Samples: 1, Slots: 1, Seed: 3})
		if err != nil {
			t.Fatal(err)
		}
		parameters := s.Parameters()
		for _, tensor := range s.Tensors() {
			v := make([]float32, tensor.Len())
			parameters.Read(v, tensor.Offset)
			values[tensor.Name] = v
		}
		about := export.ShardMeta{Layers: [2]int{r.From, r.To}, Tensors: s.Tensors()}
		if len(companions) > 0 {
			about.Companions = companions[0]
		}
		meta, err := json.Marshal(about)
		if err != nil {
			t.Fatal(err)
		}
		h := shard.Header{
			Job: "1", Generation: 1, Round: 5, Stage: k, Stages: stages, Meta: meta,
			Vectors: []shard.Vector{{Name: "other", Elements: 3}, {Name: shard.CenterVector, Elements: parameters.Len()}},
		}
		center := make([]float32, parameters.Len())
		parameters.Read(center, 0)
		digest, _, err := shard.Write(t.Context(), store, &h, [][]float32{make([]float32, 3), center})
		if err != nil {
			t.Fatal(err)
		}
		digests = append(digests, digest)
	}
	return store, digests, values
}

func TestExportedModelHoldsTheCenterUnderHuggingFaceNames(t *testing.T) {
	for _, stages := range []int{1, 2, 4} {
		m := tinyModel(t)
		store, digests, want := writeShards(t, m, stages)
		dir := filepath.Join(t.TempDir(), "model")
		if err := exporttest.Unpack(t.Context(), dir, m, store, digests, ""); err != nil {
			t.Fatal(err)
		}
		back, weights, err := export.Open(nil, dir)
		if err != nil {
			t.Fatal(err)
		}
		if back.Weights() != m.Weights() || back.Sequence() != m.Sequence() {
			t.Errorf("%d stages: the exported config makes %d weights, expected %d", stages, back.Weights(), m.Weights())
		}
		names := 0
		for _, p := range m.Params() {
			if p.TiedTo != "" {
				continue
			}
			names++
			shape, got, ok, err := weights.Lookup(p.Name)
			if err != nil || !ok || !slices.Equal(shape, p.Shape) || !slices.Equal(got, want[p.Name]) {
				t.Errorf("%d stages: tensor %s: shape %v, found %v, error %v", stages, p.Name, shape, ok, err)
			}
		}
		if names < 10 {
			t.Errorf("only %d tensors were compared", names)
		}
		if err := weights.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestExportRefusesWhatIsNotOneModel(t *testing.T) {
	m := tinyModel(t)
	store, digests, _ := writeShards(t, m, 2)
	for name, c := range map[string]struct {
		shards []shard.Digest
		want   string
	}{
		"stages in the wrong order": {[]shard.Digest{digests[1], digests[0]}, "is of stage 1 of 2, expected 0 of 2"},
		"one stage missing":         {digests[:1], "is of stage 0 of 2, expected 0 of 1"},
	} {
		dir := filepath.Join(t.TempDir(), "model")
		err := exporttest.Unpack(t.Context(), dir, m, store, c.shards, "")
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error is %v, want %q", name, err, c.want)
		}
		if matches, _ := filepath.Glob(filepath.Join(filepath.Dir(dir), "*")); len(matches) != 0 {
			t.Errorf("%s: left %v behind", name, matches)
		}
	}
}

// TestLostOrDamagedCompanionsRefuseAnExport: the shards of the round know what goes with it, whatever a later worker left there.
func TestLostOrDamagedCompanionsRefuseAnExport(t *testing.T) {
	m, dir := tinyModel(t), t.TempDir()
	digests, err := export.WriteCompanions(dir, export.Card{Task: m.Task, Sequence: 4}, map[string][]byte{export.TokenizerFile: []byte("{}")})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := export.WriteCompanions(dir, export.Card{Task: m.Task, Sequence: 5}, nil); err != nil { // of another generation
		t.Fatal(err)
	}
	store, shards, _ := writeShards(t, m, 2, digests)
	pack := func() (map[string]string, error) {
		var archive bytes.Buffer
		if err := export.Pack(t.Context(), &archive, m, store, shards, dir, ""); err != nil {
			return nil, err
		}
		out, files := t.TempDir(), map[string]string{}
		if err := modeldir.Unpack(&archive, out); err != nil {
			t.Fatal(err)
		}
		for name := range digests {
			text, err := os.ReadFile(filepath.Join(out, name))
			if err != nil {
				t.Error(err)
			}
			files[name] = string(text)
		}
		return files, nil
	}
	files, err := pack()
	if err != nil || files[export.TokenizerFile] != "{}" || !strings.Contains(files[export.CardFile], `"sequence": 4`) {
		t.Fatalf("%q, %v", files, err)
	}
	for name, digest := range digests {
		path := checkpoint.ObjectPath(dir, digest)
		for what, damage := range map[string]func() error{
			"changed": func() error { return os.WriteFile(path, []byte(files[name]+" "), 0o600) },
			"lost":    func() error { return os.Remove(path) },
		} {
			if err := damage(); err != nil {
				t.Fatal(err)
			}
			_, err := pack()
			for _, want := range []string{name + ", which goes with the model, is lost or damaged", path, "put it there again from a backup"} {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("%s %s: error is %v, want %q", name, what, err, want)
				}
			}
		}
		if err := os.WriteFile(path, []byte(files[name]), 0o600); err != nil { // the repair
			t.Fatal(err)
		}
		if _, err := pack(); err != nil {
			t.Error(err)
		}
	}
}
