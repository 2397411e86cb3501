package shard

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"

	"github.com/avgpipe/avgpipe/internal/checkpoint"
)

// SourceError says that what a shard was read from broke off, or was not the shard. Another source may have it.
type SourceError struct{ Err error }

func (e *SourceError) Error() string { return e.Err.Error() }

// Unwrap gives the cause.
func (e *SourceError) Unwrap() error { return e.Err }

// Receive makes a shard of so many bytes durable that r reads, once its length and its digest are right. What is wrong with r is a
// *SourceError; a full disk is a *checkpoint.SpaceError. After an error nothing is left behind, and what was there before is as it was.
func (s Store) Receive(ctx context.Context, d Digest, bytes int64, r io.Reader) error {
	if _, err := ParseDigest(string(d)); err != nil {
		return fmt.Errorf("receive shard: %w", err)
	}
	f, err := checkpoint.Create(s.dir, 0o640, bytes)
	if err != nil {
		return fmt.Errorf("receive shard %s: %w", d, err)
	}
	if err := receive(ctx, f, d, bytes, r); err != nil {
		return errors.Join(err, f.Abort())
	}
	return f.Commit(File(d))
}

// receive copies a shard to w and checks it.
func receive(ctx context.Context, w io.Writer, d Digest, bytes int64, r io.Reader) error {
	hash := sha256.New()
	chunk := make([]byte, 4*shardChunk)
	got := int64(0)
	for {
		n, readErr := r.Read(chunk)
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		if got += int64(n); got > bytes {
			return &SourceError{fmt.Errorf("it sends more than the %d bytes that the shard has", bytes)}
		}
		hash.Write(chunk[:n])
		if n > 0 {
			if _, err := w.Write(chunk[:n]); err != nil {
				return fmt.Errorf("receive shard %s: %w", d, err)
			}
		}
		if errors.Is(readErr, io.EOF) {
			break
		}
		if readErr != nil {
			return &SourceError{fmt.Errorf("after %d of %d bytes: %w", got, bytes, readErr)}
		}
	}
	if got != bytes {
		return &SourceError{fmt.Errorf("it sends %d bytes, the shard has %d", got, bytes)}
	}
	if found := Digest(hex.EncodeToString(hash.Sum(nil))); found != d {
		return &SourceError{fmt.Errorf("it sends other bytes: their digest is %s, expected %s", found, d)}
	}
	return nil
}

// Open opens a shard without looking into it, and returns its length.
func (s Store) Open(_ context.Context, d Digest) (io.ReadCloser, int64, error) {
	f, size, err := s.open(d)
	if err != nil {
		return nil, 0, err
	}
	return f, size, nil
}
