package shard

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
)

// Store keeps the shards of committed rounds on one node, as immutable files named by their SHA-256. Its methods may be called
// concurrently. Package shardtest is the conformance suite. A ctx that ends stops the work at the next run of bytes.
type Store interface {
	// Write makes what content writes durable under its digest: when it returns, a crash loses nothing. needed is the bytes that
	// content will write, as Bytes says; anything else is an error. A failed Write leaves nothing behind. A full disk
	// is a *checkpoint.SpaceError. Writing the same bytes again is harmless.
	Write(ctx context.Context, needed int64, content func(io.Writer) error) (Digest, error)
	// Open returns a shard after it has been read through and found whole: magic, version, header, length and digest. A
	// damaged one is a *DamagedError, an absent one wraps fs.ErrNotExist. The caller closes the Blob.
	Open(ctx context.Context, d Digest) (Blob, error)
	// Verify does what Open does and returns the length.
	Verify(ctx context.Context, d Digest) (bytes int64, err error)
	// List returns the digests of all shards, sorted.
	List(ctx context.Context) ([]Digest, error)
	// Collect takes shards out of the store, and deletes what a crash left of writes that did not finish. A shard that cannot be
	// read now, for whatever reason of the disk, stays. It returns what is gone from the store, also beside an error.
	Collect(ctx context.Context, c Collection) (removed []Digest, err error)
}

// Collection says which shards leave a store.
type Collection struct {
	Keep       []Digest // stay, whatever they hold
	Superseded []Digest // are deleted: newer rounds have taken their place
	// Before: all others of rounds before this one, and those whose header is unreadable, are set aside. So a shard of a round that
	// is about to be committed is safe.
	Before uint64
	// Aside is the directory that shards are moved to which nobody has superseded: nobody expected them here, so a person may
	// want them. It is made when there is one, on the store's file system. Empty: they are deleted. A store in memory deletes.
	Aside string
}

// Blob is an open, verified shard, positioned at its start.
type Blob interface {
	io.Reader
	io.Closer
	Size() int64
}

// DamagedError reports a shard that must not be loaded.
type DamagedError struct {
	Path            string // the file's name
	Expected, Found Digest // by its name, and of its content
	Problem         error  // with the header or the length; nil when only the digest differs
}

func (e *DamagedError) Error() string {
	problem := ""
	if e.Problem != nil {
		problem = e.Problem.Error() + "; "
	}
	return fmt.Sprintf("shard %s is damaged and was not loaded: %sits digest is %s, expected %s; "+
		"restore it from a backup, or resume from an older round", e.Path, problem, e.Found, e.Expected)
}

// Unwrap gives the cause.
func (e *DamagedError) Unwrap() error { return e.Problem }

// Write encodes a shard into the store.
func Write(ctx context.Context, s Store, h *Header, read func(v int, dst []float32, offset int) error) (Digest, int64, error) {
	needed, err := Bytes(h)
	if err != nil {
		return "", 0, err
	}
	d, err := s.Write(ctx, needed, func(w io.Writer) error { return Encode(w, h, read) })
	if err != nil {
		return "", 0, fmt.Errorf("write shard of job %s round %d stage %d: %w", h.Job, h.Round, h.Stage, err)
	}
	return d, needed, nil
}

// Read opens and verifies a shard, hands its header to accept, and then its vectors to the function that accept returns, as
// Decoder.Decode does. Nothing is handed over unless the whole file is right.
func Read(ctx context.Context, s Store, d Digest,
	accept func(h *Header) (write func(v int, src []float32, offset int) error, err error),
) (err error) {
	blob, err := s.Open(ctx, d)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, blob.Close()) }()
	decoder, err := NewDecoder(blob, blob.Size())
	if err != nil {
		return fmt.Errorf("shard %s: %w", d, err)
	}
	write, err := accept(&decoder.Header)
	if err != nil {
		return fmt.Errorf("shard %s: %w", d, err)
	}
	err = decoder.Decode(func(v int, src []float32, offset int) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		return write(v, src, offset)
	})
	if err != nil {
		return fmt.Errorf("shard %s: %w", d, err)
	}
	return nil
}

// verifyShard reads a whole shard of size bytes and reports what is wrong with it.
func verifyShard(ctx context.Context, r io.Reader, size int64, path string, expected Digest) error {
	h := newHasher(ctx, io.Discard)
	_, problem := NewDecoder(io.TeeReader(r, h), size)
	if _, err := io.Copy(h, r); err != nil {
		return fmt.Errorf("verify shard %s: %w", path, err)
	}
	if problem == nil && h.written != size {
		problem = fmt.Errorf("%d bytes, expected %d", h.written, size)
	}
	if found := h.digest(); problem != nil || found != expected {
		return &DamagedError{Path: path, Expected: expected, Found: found, Problem: problem}
	}
	return nil
}

// hasher passes bytes on, digests and counts them, and stops when its context ends.
type hasher struct {
	ctx     context.Context //nolint:containedctx // it lives no longer than the call that made it
	w       io.Writer
	hash    hash.Hash
	written int64
}

func newHasher(ctx context.Context, w io.Writer) *hasher {
	return &hasher{ctx: ctx, w: w, hash: sha256.New()}
}

func (h *hasher) Write(p []byte) (int, error) {
	if err := h.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := h.w.Write(p)
	h.hash.Write(p[:n]) // never fails, by its contract
	h.written += int64(n)
	return n, err
}

func (h *hasher) digest() Digest { return Digest(hex.EncodeToString(h.hash.Sum(nil))) }

// writeContent runs content into w and checks that it kept its word about the length.
func writeContent(ctx context.Context, w io.Writer, needed int64, content func(io.Writer) error) (Digest, error) {
	h := newHasher(ctx, w)
	if err := content(h); err != nil {
		return "", err
	}
	if h.written != needed {
		return "", fmt.Errorf("%d bytes were written, %d were announced", h.written, needed)
	}
	return h.digest(), nil
}
