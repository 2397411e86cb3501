package shard

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/avgpipe/avgpipe/internal/checkpoint"
)

// shardSuffix ends the name of every shard file.
const shardSuffix = ".shard"

// Digest is the SHA-256 of a file, in 64 lower-case hexadecimal digits.
type Digest string

// ParseDigest checks that s is a digest.
func ParseDigest(s string) (Digest, error) {
	raw, err := hex.DecodeString(s)
	if err != nil || len(raw) != sha256.Size || hex.EncodeToString(raw) != s {
		return "", fmt.Errorf("digest %q: expected 64 lower-case hexadecimal digits (SHA-256)", s)
	}
	return Digest(s), nil
}

// Store keeps the shards of committed rounds in one directory, as immutable files named by their SHA-256. Several processes may use
// the directory at a time, and methods may be called concurrently. A ctx that ends stops the work at the next chunk of bytes.
type Store struct{ dir string }

// OpenStore makes the directory if need be.
func OpenStore(dir string) (Store, error) {
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return Store{}, fmt.Errorf("open shard store %s: %w", dir, err)
	}
	return StoreAt(dir), nil
}

// StoreAt is OpenStore for a directory that must be there already: nothing is made in the place of one that is not mounted.
func StoreAt(dir string) Store { return Store{dir} }

// File is the name of a shard's file.
func File(d Digest) string { return string(d) + shardSuffix }

// Path is the file of a shard, whether it exists or not.
func (s Store) Path(d Digest) string { return filepath.Join(s.dir, File(d)) }

// Write makes a shard durable: when it returns, a crash loses nothing. vectors are those that the header lists. It returns the shard's
// digest and length. A failed Write leaves nothing behind. A full disk is a *checkpoint.SpaceError. Writing the same shard again heals
// a damaged one.
func Write(ctx context.Context, s Store, h *Header, vectors [][]float32) (d Digest, size int64, err error) {
	if d, size, err = s.write(ctx, h, vectors); err != nil {
		return "", 0, fmt.Errorf("write shard of job %s round %d stage %d in %s: %w", h.Job, h.Round, h.Stage, s.dir, err)
	}
	return d, size, nil
}

func (s Store) write(ctx context.Context, h *Header, vectors [][]float32) (Digest, int64, error) {
	size, err := Bytes(h)
	if err != nil {
		return "", 0, err
	}
	f, err := checkpoint.Create(s.dir, 0o640, size)
	if err != nil {
		return "", 0, err
	}
	hash := sha256.New()
	if err := Encode(ctx, io.MultiWriter(f, hash), h, vectors); err != nil {
		return "", 0, errors.Join(err, f.Abort())
	}
	d := Digest(hex.EncodeToString(hash.Sum(nil)))
	return d, size, f.Commit(File(d))
}

// Read verifies a shard, hands its header to accept, and reads its vectors into the memory that accept returns; nil for a vector that
// is not wanted. Nothing is handed over unless the whole file is right: a damaged one is a *DamagedError, an absent one wraps
// fs.ErrNotExist.
func Read(ctx context.Context, s Store, d Digest, accept func(h *Header) ([][]float32, error)) (err error) {
	f, size, err := s.open(d)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if err := verify(ctx, f, size, s.Path(d), d); err != nil {
		return err
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return fmt.Errorf("read shard %s: %w", s.Path(d), err)
	}
	if err := Decode(ctx, f, size, accept); err != nil {
		return fmt.Errorf("shard %s: %w", d, err)
	}
	return nil
}

// Range is a run of elements of a vector of a shard, and the memory that it is read into.
type Range struct {
	Vector int // in the order of the header
	From   int // its first element
	Into   []float32
}

// ReadRanges verifies a shard as Read does, hands its header to accept, and reads the ranges that accept returns, which must lie in their
// vectors. Nothing else of the file is kept.
func ReadRanges(ctx context.Context, s Store, d Digest, accept func(h *Header) ([]Range, error)) (err error) {
	f, size, err := s.open(d)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if err := verify(ctx, f, size, s.Path(d), d); err != nil {
		return err
	}
	if err := readRanges(ctx, f, size, accept); err != nil {
		return fmt.Errorf("shard %s: %w", d, err)
	}
	return nil
}

// readRanges reads ranges of a verified file.
func readRanges(ctx context.Context, f *os.File, size int64, accept func(h *Header) ([]Range, error)) error {
	h, err := readHeader(io.NewSectionReader(f, 0, size), size)
	if err != nil {
		return err
	}
	ranges, err := accept(h)
	if err != nil {
		return err
	}
	starts, at := make([]int64, len(h.Vectors)), size-h.dataBytes()
	for i, v := range h.Vectors {
		starts[i] = at
		at += 4 * int64(v.Elements)
	}
	raw := make([]byte, 4*shardChunk)
	for _, r := range ranges {
		if r.Vector < 0 || r.Vector >= len(starts) || r.From < 0 || r.From > h.Vectors[r.Vector].Elements-len(r.Into) {
			return fmt.Errorf("%d elements from %d on of vector %d: the header has no such range", len(r.Into), r.From, r.Vector)
		}
		from := starts[r.Vector] + 4*int64(r.From)
		for chunk := range slices.Chunk(r.Into, shardChunk) {
			part := raw[:4*len(chunk)]
			if _, err := f.ReadAt(part, from); err != nil {
				return fmt.Errorf("vector %q at byte %d: %w", h.Vectors[r.Vector].Name, from, err)
			}
			if _, err := binary.Decode(part, binary.LittleEndian, chunk); err != nil {
				return fmt.Errorf("vector %q at byte %d: %w", h.Vectors[r.Vector].Name, from, err)
			}
			if err := ctx.Err(); err != nil {
				return err
			}
			from += int64(len(part))
		}
	}
	return nil
}

// Verify reads a shard through, as Read does, and returns its length.
func (s Store) Verify(ctx context.Context, d Digest) (bytes int64, err error) {
	f, size, err := s.open(d)
	if err != nil {
		return 0, err
	}
	return size, errors.Join(verify(ctx, f, size, s.Path(d), d), f.Close())
}

// Size returns the length of a shard's file without looking into it.
func (s Store) Size(_ context.Context, d Digest) (int64, error) {
	f, size, err := s.open(d)
	if err != nil {
		return 0, err
	}
	return size, f.Close()
}

// Header reads the header of a shard. What it says is verified with the rest of the file, by Read.
func (s Store) Header(d Digest) (*Header, error) {
	f, size, err := s.open(d)
	if err != nil {
		return nil, err
	}
	h, err := readHeader(f, size)
	if err := errors.Join(err, f.Close()); err != nil {
		return nil, fmt.Errorf("shard %s: %w", s.Path(d), err)
	}
	return h, nil
}

// open opens a shard file without looking into it.
func (s Store) open(d Digest) (f *os.File, size int64, err error) {
	if _, err := ParseDigest(string(d)); err != nil {
		return nil, 0, fmt.Errorf("open shard: %w", err)
	}
	if f, err = os.Open(s.Path(d)); err != nil {
		return nil, 0, fmt.Errorf("open shard: %w", err)
	}
	info, err := f.Stat()
	if err != nil {
		return nil, 0, errors.Join(fmt.Errorf("open shard: %w", err), f.Close())
	}
	return f, info.Size(), nil
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

// verify reads a whole shard of size bytes and reports what is wrong with it.
func verify(ctx context.Context, f io.Reader, size int64, path string, expected Digest) error {
	hash := sha256.New()
	r := io.TeeReader(untilDone{ctx, f}, hash)
	_, problem := readHeader(r, size)
	if _, err := io.Copy(io.Discard, r); err != nil {
		return fmt.Errorf("verify shard %s: %w", path, err)
	}
	if found := Digest(hex.EncodeToString(hash.Sum(nil))); problem != nil || found != expected {
		return &DamagedError{Path: path, Expected: expected, Found: found, Problem: problem}
	}
	return nil
}

// untilDone fails once its context has ended.
type untilDone struct {
	ctx context.Context //nolint:containedctx // it lives no longer than the call that made it
	io.Reader
}

func (r untilDone) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.Reader.Read(p)
}

// list returns the digests of all shards, sorted. Other files are none of our business.
func (s Store) list() ([]Digest, error) {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return nil, fmt.Errorf("list shards: %w", err)
	}
	var digests []Digest
	for _, e := range entries {
		base, ok := strings.CutSuffix(e.Name(), shardSuffix)
		if d, err := ParseDigest(base); ok && err == nil {
			digests = append(digests, d)
		}
	}
	return digests, nil
}

// Collection says which shards leave a store.
type Collection struct {
	Keep       []Digest // stay, whatever they hold
	Superseded []Digest // are deleted: newer rounds have taken their place
	// Before: all others of rounds before this one, and those whose header is unreadable, are set aside. So a shard of a round that
	// is about to be committed is safe.
	Before uint64
	// Generation is the newest that who collects knows of: shards of later ones stay. A question that arrives late says nothing of them.
	Generation uint64
	// Aside is the directory that shards are moved to which nobody has superseded: nobody expected them here, so a person may
	// want them. It is made when there is one, on the store's file system. Empty: they are deleted.
	Aside string
}

// Collect takes shards out of the store, and deletes what a crash left of writes that did not finish. A shard that cannot be
// read now, for whatever reason of the disk, stays. It returns what is gone from the store, also beside an error.
func (s Store) Collect(ctx context.Context, c Collection) (removed []Digest, err error) {
	_, err = checkpoint.RemoveStale(s.dir)
	all, listErr := s.list()
	if err = errors.Join(err, listErr); listErr != nil {
		return nil, err
	}
	for _, d := range all {
		if ctx.Err() != nil {
			return removed, errors.Join(err, ctx.Err())
		}
		superseded := slices.Contains(c.Superseded, d)
		if slices.Contains(c.Keep, d) || !superseded && !s.obsolete(d, c) {
			continue
		}
		takeErr := error(nil)
		if superseded || c.Aside == "" {
			takeErr = os.Remove(s.Path(d))
		} else if takeErr = os.MkdirAll(c.Aside, 0o750); takeErr == nil {
			takeErr = os.Rename(s.Path(d), filepath.Join(c.Aside, File(d)))
		}
		switch {
		case takeErr == nil:
			removed = append(removed, d)
		case !errors.Is(takeErr, fs.ErrNotExist): // else another process was faster
			err = errors.Join(err, fmt.Errorf("collect shard: %w", takeErr))
		}
	}
	return removed, err
}

// obsolete reports whether the shard is of a round before that of a collection, in a generation that it knows of, or unusable. One that cannot be read
// now is not.
func (s Store) obsolete(d Digest, c Collection) bool {
	h, err := s.Header(d)
	if _, unreadable := errors.AsType[*fs.PathError](err); unreadable {
		return false
	}
	return err != nil || h.Round < c.Before && h.Generation <= c.Generation
}
