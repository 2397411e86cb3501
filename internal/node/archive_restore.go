package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"go.uber.org/zap"

	"github.com/avgpipe/avgpipe/internal/agent"
	"github.com/avgpipe/avgpipe/internal/archive"
	"github.com/avgpipe/avgpipe/internal/checkpoint"
	"github.com/avgpipe/avgpipe/internal/cluster"
	"github.com/avgpipe/avgpipe/internal/shard"
	"github.com/avgpipe/avgpipe/internal/worker/control"
)

// restore gets the files of a round back from the job's bucket, those that are not on this node whole. The error is errNoStore where the job
// has no bucket.
func (a *archiver) restore(ctx context.Context, j *cluster.Job, m *cluster.Manifest) error {
	at, _, err := a.of(j)
	if err != nil {
		return err
	}
	r, err := at.Read(ctx, m.Round)
	if err != nil {
		return fmt.Errorf("get round %d back: %w", m.Round, err)
	}
	return a.fetch(ctx, j.ID, at, r)
}

// has looks whether the job's bucket has a round, and changes nothing. The error is errNoStore where the job has no bucket.
func (a *archiver) has(ctx context.Context, j *cluster.Job, m *cluster.Manifest) error {
	at, _, err := a.of(j)
	if err == nil {
		_, err = at.Read(ctx, m.Round)
	}
	return err
}

// fetch reads what of a round is not on this node.
func (a *archiver) fetch(ctx context.Context, id string, at *archive.Archive, r *archive.Round) error {
	dir := agent.JobDir(a.node.config.StateDir, id)
	for _, d := range []string{control.ShardDir(dir), control.ModelDir(dir)} {
		if err := os.MkdirAll(d, 0o750); err != nil {
			return err
		}
	}
	store, fetched := shard.StoreAt(control.ShardDir(dir)), 0
	for _, f := range r.Manifest().Files() {
		if bytes, err := store.Verify(ctx, f.Digest); err == nil && bytes == f.Bytes {
			continue
		}
		if err := fetchInto(ctx, at, archive.File{Digest: f.Digest, Bytes: f.Bytes}, control.ShardDir(dir), shard.File(f.Digest)); err != nil {
			return err
		}
		fetched++
	}
	for _, f := range r.Objects {
		where := control.ModelDir(dir)
		if f.Digest == r.Job.SourceDigest {
			where = dir
		}
		if _, err := checkpoint.ReadObject(where, string(f.Digest)); err == nil {
			continue
		}
		if err := fetchInto(ctx, at, f, where, string(f.Digest)+".object"); err != nil {
			return err
		}
		fetched++
	}
	a.node.coordinator().Say(id, "files were read from the bucket", zap.Uint64("round", r.Manifest().Round), zap.Int("files", fetched), zap.String("store", at.At.String()))
	return nil
}

// fetchInto makes a file of a round durable under a name.
func fetchInto(ctx context.Context, at *archive.Archive, f archive.File, dir, name string) error {
	file, err := checkpoint.Create(dir, 0o640, f.Bytes)
	if err != nil {
		return err
	}
	err = at.Fetch(ctx, f, func(content io.Reader) error {
		_, err := io.Copy(file, content)
		return err
	})
	if err != nil {
		return errors.Join(err, file.Abort())
	}
	return file.Commit(name)
}
