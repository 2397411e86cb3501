// Package exporttest helps tests to look into exported models.
package exporttest

import (
	"archive/tar"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/avgpipe/avgpipe/internal/export"
	"github.com/avgpipe/avgpipe/internal/shard"
	"github.com/avgpipe/avgpipe/stage/model"
)

// Unpack packs a model and unpacks it into dir, which it makes.
func Unpack(ctx context.Context, dir string, m *model.Model, store shard.Store, shards []shard.Digest) error {
	r, w := io.Pipe()
	packed := make(chan error, 1)
	go func() {
		err := export.Pack(ctx, w, m, store, shards, "", "")
		packed <- errors.Join(err, w.CloseWithError(err))
	}()
	err := unpack(dir, tar.NewReader(r))
	return errors.Join(<-packed, err, r.Close())
}

func unpack(dir string, archive *tar.Reader) error {
	for {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		content, err := io.ReadAll(archive)
		if err != nil {
			return err
		}
		if err := os.MkdirAll(dir, 0o750); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, filepath.Base(header.Name)), content, 0o600); err != nil {
			return err
		}
	}
}

// Weights returns the weights file of a model.
func Weights(t *testing.T, m *model.Model, store shard.Store, shards []shard.Digest) []byte {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "model")
	if err := Unpack(t.Context(), dir, m, store, shards); err != nil {
		t.Fatal(err)
	}
	weights, err := os.ReadFile(filepath.Join(dir, export.WeightsFile))
	if err != nil {
		t.Fatal(err)
	}
	return weights
}
