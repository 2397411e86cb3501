// Package exporttest helps tests to look into exported models.
package exporttest

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/avgpipe/avgpipe/internal/export"
	"github.com/avgpipe/avgpipe/internal/modeldir"
	"github.com/avgpipe/avgpipe/internal/shard"
	"github.com/avgpipe/avgpipe/stage/model"
)

// Unpack packs a model, with what goes with it in companions (empty: nothing), and unpacks it into dir, which it makes.
func Unpack(ctx context.Context, dir string, m *model.Model, store shard.Store, shards []shard.Digest, companions string) error {
	var archive bytes.Buffer
	if err := export.Pack(ctx, &archive, m, store, shards, companions, ""); err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return err
	}
	return modeldir.Unpack(&archive, dir)
}

// Weights returns the weights file of a model.
func Weights(t *testing.T, m *model.Model, store shard.Store, shards []shard.Digest, companions string) []byte {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "model")
	if err := Unpack(t.Context(), dir, m, store, shards, companions); err != nil {
		t.Fatal(err)
	}
	weights, err := os.ReadFile(filepath.Join(dir, export.WeightsFile))
	if err != nil {
		t.Fatal(err)
	}
	return weights
}
