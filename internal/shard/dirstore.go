package shard

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"github.com/avgpipe/avgpipe/internal/checkpoint"
)

// shardSuffix ends the name of every shard file.
const shardSuffix = ".shard"

// DirStore is a Store in one directory. Several processes may use the directory at a time.
type DirStore struct {
	fsys checkpoint.FS
	dir  string
}

var _ Store = (*DirStore)(nil)

// OpenDirStore makes the directory if need be. fsys is checkpoint.OS but in tests.
func OpenDirStore(fsys checkpoint.FS, dir string) (*DirStore, error) {
	if err := fsys.MkdirAll(dir, 0o750); err != nil {
		return nil, fmt.Errorf("open shard store %s: %w", dir, err)
	}
	return &DirStore{fsys: fsys, dir: dir}, nil
}

// DirStoreAt is OpenDirStore for a directory that must be there already: nothing is made in the place of one that is not mounted.
func DirStoreAt(fsys checkpoint.FS, dir string) *DirStore { return &DirStore{fsys: fsys, dir: dir} }

// File is the name of a shard's file.
func File(d Digest) string { return string(d) + shardSuffix }

// Path is the file of a shard, whether it exists or not.
func (s *DirStore) Path(d Digest) string { return filepath.Join(s.dir, File(d)) }

// Write implements Store.
func (s *DirStore) Write(ctx context.Context, needed int64, content func(io.Writer) error) (Digest, error) {
	f, err := checkpoint.Create(s.fsys, s.dir, 0o640, needed)
	if err != nil {
		return "", err
	}
	d, err := writeContent(ctx, f, needed, content)
	if err != nil {
		return "", errors.Join(fmt.Errorf("write shard in %s: %w", s.dir, err), f.Abort())
	}
	// A file of that name may be there already, and be damaged: replacing it heals it.
	if err := f.Commit(string(d) + shardSuffix); err != nil {
		return "", err
	}
	return d, nil
}

// dirBlob is an open shard file.
type dirBlob struct {
	checkpoint.File
	size int64
}

func (b *dirBlob) Size() int64 { return b.size }

// Open implements Store.
func (s *DirStore) Open(ctx context.Context, d Digest) (Blob, error) {
	b, err := s.open(d)
	if err != nil {
		return nil, err
	}
	if err := verifyShard(ctx, b, b.size, s.Path(d), d); err != nil {
		return nil, errors.Join(err, b.Close())
	}
	if _, err := b.Seek(0, io.SeekStart); err != nil {
		return nil, errors.Join(fmt.Errorf("open shard %s: %w", s.Path(d), err), b.Close())
	}
	return b, nil
}

// open opens a shard file without looking into it.
func (s *DirStore) open(d Digest) (*dirBlob, error) {
	if _, err := ParseDigest(string(d)); err != nil {
		return nil, fmt.Errorf("open shard: %w", err)
	}
	f, err := s.fsys.Open(s.Path(d))
	if err != nil {
		return nil, fmt.Errorf("open shard: %w", err)
	}
	info, err := f.Stat()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open shard: %w", err), f.Close())
	}
	return &dirBlob{f, info.Size()}, nil
}

// Verify implements Store.
func (s *DirStore) Verify(ctx context.Context, d Digest) (int64, error) {
	b, err := s.Open(ctx, d)
	if err != nil {
		return 0, err
	}
	return b.Size(), b.Close()
}

// Size returns the length of a shard's file without looking into it.
func (s *DirStore) Size(_ context.Context, d Digest) (int64, error) {
	b, err := s.open(d)
	if err != nil {
		return 0, err
	}
	return b.size, b.Close()
}

// List implements Store.
func (s *DirStore) List(ctx context.Context) ([]Digest, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	names, err := s.fsys.ReadDir(s.dir)
	if err != nil {
		return nil, fmt.Errorf("list shards: %w", err)
	}
	var digests []Digest
	for _, name := range names {
		if base, ok := strings.CutSuffix(name, shardSuffix); ok {
			if d, err := ParseDigest(base); err == nil { // other files are none of our business
				digests = append(digests, d)
			}
		}
	}
	return digests, nil
}

// Collect implements Store.
func (s *DirStore) Collect(ctx context.Context, c Collection) ([]Digest, error) {
	_, err := checkpoint.RemoveStale(s.fsys, s.dir)
	all, listErr := s.List(ctx)
	if err = errors.Join(err, listErr); listErr != nil {
		return nil, err
	}
	var removed []Digest
	for _, d := range all {
		if ctx.Err() != nil {
			return removed, errors.Join(err, ctx.Err())
		}
		if slices.Contains(c.Keep, d) {
			continue
		}
		take := s.setAside
		if slices.Contains(c.Superseded, d) || c.Aside == "" {
			take = func(_ string, d Digest) error { return s.fsys.Remove(s.Path(d)) }
		}
		if !slices.Contains(c.Superseded, d) && !s.obsolete(d, c.Before) {
			continue
		}
		if takeErr := take(c.Aside, d); takeErr != nil {
			if !errors.Is(takeErr, fs.ErrNotExist) { // else another process was faster
				err = errors.Join(err, fmt.Errorf("collect shard: %w", takeErr))
			}
			continue
		}
		removed = append(removed, d)
	}
	return removed, err
}

// setAside moves a shard out of the store.
func (s *DirStore) setAside(dir string, d Digest) error {
	if err := s.fsys.MkdirAll(dir, 0o750); err != nil {
		return err
	}
	return s.fsys.Rename(s.Path(d), filepath.Join(dir, string(d)+shardSuffix))
}

// obsolete reports whether the shard is of a round before the given one, or unusable. One that cannot be read now is not.
func (s *DirStore) obsolete(d Digest, before uint64) bool {
	b, err := s.open(d)
	if err != nil {
		return false
	}
	decoder, err := NewDecoder(b, b.size)
	_ = b.Close() // only read from
	if _, unreadable := errors.AsType[*fs.PathError](err); unreadable {
		return false
	}
	return err != nil || decoder.Header.Round < before
}
