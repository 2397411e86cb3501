// Package objectstoretest has a bucket in memory that fails as it is told, and the suite that every bucket passes.
package objectstoretest

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/avgpipe/avgpipe/internal/objectstore"
)

// Memory is a bucket. The zero value is empty.
type Memory struct {
	// Fault, unless nil, is asked before each operation, whose error it returns; nil lets it happen. It may block until ctx ends. Set it
	// before the bucket is used.
	Fault func(ctx context.Context, op, key string) error
	// Truncate, unless nil, says how many bytes of an object Get hands out before it ends as if that were all; negative: all.
	Truncate func(key string) int

	mu      sync.Mutex
	objects map[string]object
}

type object struct {
	content []byte
	sha256  string
}

// etag is a digest of the content, as servers make it.
func (o object) etag() string {
	sum := sha256.Sum256(o.content)
	return hex.EncodeToString(sum[:16])
}

var _ objectstore.Bucket = (*Memory)(nil)

func (m *Memory) fault(ctx context.Context, op, key string) error {
	var err error
	if m.Fault != nil {
		err = m.Fault(ctx, op, key)
	}
	return wrap(op, key, cmp.Or(err, ctx.Err()))
}

func wrap(op, key string, err error) error {
	if _, own := errors.AsType[*objectstore.Error](err); own || err == nil {
		return err
	}
	return &objectstore.Error{Kind: objectstore.Unavailable, Op: op, URL: "s3://memory/" + key, Err: err}
}

// Put implements objectstore.Bucket.
func (m *Memory) Put(ctx context.Context, key string, content io.Reader, size int64, digest string) error {
	if err := m.fault(ctx, "put", key); err != nil {
		return err
	}
	all, err := io.ReadAll(content)
	if err == nil && int64(len(all)) != size {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return wrap("put", key, err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.objects == nil {
		m.objects = map[string]object{}
	}
	m.objects[key] = object{all, digest}
	return nil
}

func (m *Memory) find(ctx context.Context, op, key string) (object, error) {
	if err := m.fault(ctx, op, key); err != nil {
		return object{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	o, ok := m.objects[key]
	if !ok {
		return o, &objectstore.Error{Kind: objectstore.NoObject, Op: op, URL: "s3://memory/" + key, Err: errors.New("it was never put")}
	}
	return o, nil
}

// Stat implements objectstore.Bucket.
func (m *Memory) Stat(ctx context.Context, key string) (objectstore.Info, error) {
	o, err := m.find(ctx, "stat", key)
	if err != nil {
		return objectstore.Info{}, err
	}
	return objectstore.Info{Key: key, Bytes: int64(len(o.content)), SHA256: o.sha256, ETag: o.etag()}, nil
}

// Get implements objectstore.Bucket.
func (m *Memory) Get(ctx context.Context, key string) (io.ReadCloser, error) {
	o, err := m.find(ctx, "get", key)
	if err != nil {
		return nil, err
	}
	return m.read(key, o.content), nil
}

// GetFrom implements objectstore.Bucket.
func (m *Memory) GetFrom(ctx context.Context, key, etag string, first int64) (io.ReadCloser, error) {
	o, err := m.find(ctx, "get", key)
	if err != nil {
		return nil, err
	}
	if o.etag() != etag || first >= int64(len(o.content)) {
		return nil, &objectstore.Error{Kind: objectstore.Changed, Op: "get", URL: "s3://memory/" + key, Err: fmt.Errorf("its ETag is %q, expected %q", o.etag(), etag)}
	}
	return m.read(key, o.content[first:]), nil
}

// read hands out content.
func (m *Memory) read(key string, content []byte) io.ReadCloser {
	if m.Truncate != nil {
		if n := m.Truncate(key); n >= 0 {
			content = content[:min(n, len(content))]
		}
	}
	return io.NopCloser(bytes.NewReader(content))
}

// List implements objectstore.Bucket.
func (m *Memory) List(ctx context.Context, prefix string) ([]objectstore.Info, error) {
	if err := m.fault(ctx, "list", prefix); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	var all []objectstore.Info
	for _, key := range slices.Sorted(maps.Keys(m.objects)) {
		if strings.HasPrefix(key, prefix) {
			all = append(all, objectstore.Info{Key: key, Bytes: int64(len(m.objects[key].content)), ETag: m.objects[key].etag()})
		}
	}
	return all, nil
}

// Delete implements objectstore.Bucket.
func (m *Memory) Delete(ctx context.Context, key string) error {
	if err := m.fault(ctx, "delete", key); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.objects, key)
	return nil
}
