package shard

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"slices"
	"sync"
)

// MemStore is a Store in memory, for tests and simulations.
type MemStore struct {
	mu     sync.Mutex
	shards map[Digest][]byte
}

var _ Store = (*MemStore)(nil)

// NewMemStore returns an empty store.
func NewMemStore() *MemStore { return &MemStore{shards: map[Digest][]byte{}} }

// Write implements Store.
func (s *MemStore) Write(ctx context.Context, needed int64, content func(io.Writer) error) (Digest, error) {
	var b bytes.Buffer
	d, err := writeContent(ctx, &b, needed, content)
	if err != nil {
		return "", fmt.Errorf("write shard in memory: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.shards[d] = b.Bytes()
	return d, nil
}

// memBlob reads a shard in memory.
type memBlob struct{ *bytes.Reader }

func (memBlob) Close() error { return nil }

// Open implements Store.
func (s *MemStore) Open(ctx context.Context, d Digest) (Blob, error) {
	s.mu.Lock()
	data, ok := s.shards[d]
	s.mu.Unlock()
	if !ok {
		return nil, fmt.Errorf("open shard %s: %w", d, fs.ErrNotExist)
	}
	if err := verifyShard(ctx, bytes.NewReader(data), int64(len(data)), string(d), d); err != nil {
		return nil, err
	}
	return memBlob{bytes.NewReader(data)}, nil
}

// Verify implements Store.
func (s *MemStore) Verify(ctx context.Context, d Digest) (int64, error) {
	b, err := s.Open(ctx, d)
	if err != nil {
		return 0, err
	}
	return b.Size(), b.Close()
}

// List implements Store.
func (s *MemStore) List(ctx context.Context) ([]Digest, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.shards)), ctx.Err()
}

// Collect implements Store.
func (s *MemStore) Collect(ctx context.Context, c Collection) ([]Digest, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var removed []Digest
	for _, d := range slices.Sorted(maps.Keys(s.shards)) {
		if err := ctx.Err(); err != nil {
			return removed, err
		}
		data := s.shards[d]
		decoder, err := NewDecoder(bytes.NewReader(data), int64(len(data)))
		current := err == nil && decoder.Header.Round >= c.Before
		if slices.Contains(c.Keep, d) || current && !slices.Contains(c.Superseded, d) {
			continue
		}
		delete(s.shards, d)
		removed = append(removed, d)
	}
	return removed, nil
}

// Damage lets change have its way with a stored shard, for tests of what readers do then.
func (s *MemStore) Damage(d Digest, change func(data []byte) []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.shards[d] = change(slices.Clone(s.shards[d]))
}
