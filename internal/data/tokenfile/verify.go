package tokenfile

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"sync"

	"golang.org/x/sys/unix"
)

// blockBytes is what is digested together.
const blockBytes = 1 << 20

// record is what a file was when it was verified.
type record struct {
	mu     sync.Mutex
	stamp  stamp
	seed   maphash.Seed
	blocks []uint64 // digests of the whole file, header included
}

// stamp changes when a file is written. The time of modification can be set back, that of change cannot.
type stamp struct {
	size              int64
	modified, changed unix.Timespec
}

// stampOf asks for it. It allocates nothing.
func (f *File) stampOf() (stamp, error) {
	var s unix.Stat_t
	if err := unix.Fstat(f.fd, &s); err != nil {
		return stamp{}, fmt.Errorf("%s: stat: %w", f.path, err)
	}
	return stamp{s.Size, s.Mtim, s.Ctim}, nil
}

// Verify reads the whole file, holds its tokens against the digest in the header, and keeps digests of its blocks for Unchanged. Call it
// once, before the tokens are read.
func (f *File) Verify(ctx context.Context) error {
	before, err := f.stampOf()
	if err != nil {
		return err
	}
	f.record.seed = maphash.MakeSeed()
	f.record.stamp = before
	tokens := sha256.New()
	err = f.eachBlock(func(at int64, block []byte) error {
		f.record.blocks = append(f.record.blocks, maphash.Bytes(f.record.seed, block))
		_, _ = tokens.Write(block[min(int64(len(block)), max(0, headerSize-at)):]) // a hash takes everything
		return ctx.Err()
	})
	if err != nil {
		return err
	}
	if found := [sha256.Size]byte(tokens.Sum(nil)); found != f.Digest {
		return fmt.Errorf("%s: its tokens have the digest %.12x, its header says %.12x: it was damaged, or overwritten in part; "+
			"write it again with `avgpipectl tokenize`", f.path, found, f.Digest)
	}
	return f.Unchanged()
}

// Unchanged reports a file that was overwritten in place since Verify, as far as its size and time of change tell; when these differ, its
// blocks decide. It may be called concurrently, and allocates nothing as long as nothing has changed.
func (f *File) Unchanged() error {
	now, err := f.stampOf()
	if err != nil {
		return err
	}
	f.record.mu.Lock()
	defer f.record.mu.Unlock()
	switch {
	case now == f.record.stamp:
		return nil
	case now.size != f.record.stamp.size:
		return fmt.Errorf("%s was overwritten while it was read: it had %d bytes and has %d; restore it", f.path, f.record.stamp.size, now.size)
	}
	err = f.eachBlock(func(at int64, block []byte) error {
		if maphash.Bytes(f.record.seed, block) != f.record.blocks[at/blockBytes] {
			return fmt.Errorf("%s was overwritten while it was read: its bytes %d to %d differ; restore it", f.path, at, at+int64(len(block)))
		}
		return nil
	})
	if err == nil {
		f.record.stamp = now // touched, or written with what was there
	}
	return err
}

// eachBlock reads the file as it is now.
func (f *File) eachBlock(do func(at int64, block []byte) error) error {
	block := make([]byte, blockBytes)
	for at := int64(0); at < int64(len(f.mapped)); at += blockBytes {
		part := block[:min(blockBytes, int64(len(f.mapped))-at)]
		for have := 0; have < len(part); {
			n, err := unix.Pread(f.fd, part[have:], at+int64(have))
			switch {
			case errors.Is(err, unix.EINTR):
			case err != nil:
				return fmt.Errorf("%s: read: %w", f.path, err)
			case n == 0:
				return fmt.Errorf("%s: read: it became shorter: %w", f.path, io.ErrUnexpectedEOF)
			default:
				have += n
			}
		}
		if err := do(at, part); err != nil {
			return err
		}
	}
	return nil
}
