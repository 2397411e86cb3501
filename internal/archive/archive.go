package archive

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"slices"
	"strings"

	"github.com/avgpipe/avgpipe/internal/objectstore"
	"github.com/avgpipe/avgpipe/internal/shard"
)

// Archive is the rounds of one job in a bucket. One process saves at a time; any number may read.
type Archive struct {
	Bucket objectstore.Bucket
	At     objectstore.Location // of the job: the prefix of the user, and KeyOf
}

// Open opens a file of a job by its digest; the error wraps fs.ErrNotExist where it is not there.
type Open func(ctx context.Context, d shard.Digest) (io.ReadCloser, error)

func (a *Archive) key(name string) string { return a.At.Key(name) }

// Save puts a round into the bucket: each file that is not there whole, then the manifest. Whoever reads the manifest finds every file. Then
// it collects all but the newest keep rounds.
func (a *Archive) Save(ctx context.Context, r *Round, open Open, keep int) error {
	for _, f := range r.Files() {
		if err := a.saveFile(ctx, f, open); err != nil {
			return fmt.Errorf("save round %d in %s: %w", r.Manifest().Round, a.At, err)
		}
	}
	text, err := r.Encode()
	if err != nil {
		return fmt.Errorf("save round %d in %s: %w", r.Manifest().Round, a.At, err)
	}
	sum := sha256.Sum256(text)
	key := a.key(roundName(r.Manifest().Round))
	if err := a.Bucket.Put(ctx, key, bytes.NewReader(text), int64(len(text)), hex.EncodeToString(sum[:])); err != nil {
		return fmt.Errorf("save round %d in %s: %w", r.Manifest().Round, a.At, err)
	}
	if err := a.collect(ctx, max(keep, 1)); err != nil {
		return fmt.Errorf("collect older rounds in %s: %w", a.At, err)
	}
	return nil
}

// saveFile puts a file, unless it is there. What is put must be what its digest says: else it is taken back.
func (a *Archive) saveFile(ctx context.Context, f File, open Open) error {
	key := a.key(fileName(f.Digest))
	if there, err := a.Bucket.Stat(ctx, key); err == nil && there.Bytes == f.Bytes && there.SHA256 == string(f.Digest) {
		return nil
	} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	content, err := open(ctx, f.Digest)
	if err != nil {
		return err
	}
	defer content.Close() //nolint:errcheck // read
	sum := sha256.New()
	if err := a.Bucket.Put(ctx, key, io.TeeReader(content, sum), f.Bytes, string(f.Digest)); err != nil {
		return err
	}
	if err := checkSum(sum, f.Digest); err != nil {
		return errors.Join(fmt.Errorf("file %s: %w", f.Digest, err), a.Bucket.Delete(ctx, key))
	}
	there, err := a.Bucket.Stat(ctx, key)
	if err == nil && (there.Bytes != f.Bytes || there.SHA256 != string(f.Digest)) {
		err = &objectstore.Error{Kind: objectstore.Damaged, Op: "put", URL: a.At.String() + "/" + fileName(f.Digest), Err: fmt.Errorf(
			"afterwards it has %d bytes and SHA-256 %q, expected %d", there.Bytes, there.SHA256, f.Bytes)}
	}
	return err
}

func checkSum(sum hash.Hash, expected shard.Digest) error {
	if found := shard.Digest(hex.EncodeToString(sum.Sum(nil))); found != expected {
		return fmt.Errorf("its digest is %s, expected %s: damaged", found, expected)
	}
	return nil
}

// rounds are the numbers of the rounds in the bucket, ascending.
func (a *Archive) rounds(ctx context.Context) (all []uint64, err error) {
	objects, err := a.Bucket.List(ctx, a.key(roundsDir)+"/")
	for _, o := range objects {
		if round, ok := roundOf(strings.TrimPrefix(o.Key, a.key(""))); ok {
			all = append(all, round)
		}
	}
	slices.Sort(all)
	return all, err
}

// collect deletes the manifests of all but the newest keep rounds, and then files that no manifest names. Where one cannot be read, nothing is
// deleted that it may name.
func (a *Archive) collect(ctx context.Context, keep int) error {
	all, err := a.rounds(ctx)
	if err != nil {
		return err
	}
	old := all[:max(0, len(all)-keep)]
	if len(old) == 0 {
		return nil
	}
	for _, round := range old {
		if err := a.Bucket.Delete(ctx, a.key(roundName(round))); err != nil {
			return err
		}
	}
	named := map[string]bool{}
	for _, round := range all[len(old):] {
		r, err := a.read(ctx, round)
		if err != nil {
			return err
		}
		for _, f := range r.Files() {
			named[a.key(fileName(f.Digest))] = true
		}
	}
	files, err := a.Bucket.List(ctx, a.key(filesDir)+"/")
	if err != nil {
		return err
	}
	for _, f := range files {
		if !named[f.Key] {
			if err := a.Bucket.Delete(ctx, f.Key); err != nil {
				return err
			}
		}
	}
	return nil
}

// read reads the manifest of a round.
func (a *Archive) read(ctx context.Context, round uint64) (*Round, error) {
	r, err := a.Bucket.Get(ctx, a.key(roundName(round)))
	if err != nil {
		return nil, err
	}
	text, err := io.ReadAll(io.LimitReader(r, maxRound+1))
	if err = errors.Join(err, r.Close()); err != nil {
		return nil, err
	}
	if len(text) > maxRound {
		return nil, fmt.Errorf("manifest of round %d in %s: more than %d bytes", round, a.At, maxRound)
	}
	decoded, err := Decode(text)
	if err != nil {
		return nil, fmt.Errorf("%s/%s: %w", a.At, roundName(round), err)
	}
	return decoded, nil
}

// Read returns the manifest of a round; of the newest one where round is 0. That there is none is an error that wraps fs.ErrNotExist.
func (a *Archive) Read(ctx context.Context, round uint64) (*Round, error) {
	if round == 0 {
		all, err := a.rounds(ctx)
		if err != nil {
			return nil, err
		}
		if len(all) == 0 {
			return nil, fmt.Errorf("%s holds no round of a job: %w", a.At, fs.ErrNotExist)
		}
		round = all[len(all)-1]
	}
	return a.read(ctx, round)
}

// Fetch reads a file and hands it to keep, as much of it as it should have at most. What keep has read is right only if Fetch returns nil.
func (a *Archive) Fetch(ctx context.Context, f File, keep func(io.Reader) error) error {
	content, err := a.Bucket.Get(ctx, a.key(fileName(f.Digest)))
	if err != nil {
		return err
	}
	defer content.Close() //nolint:errcheck // read
	sum, count := sha256.New(), &counter{}
	err = keep(io.TeeReader(io.LimitReader(content, f.Bytes+1), io.MultiWriter(sum, count)))
	if err != nil {
		return fmt.Errorf("%s/%s: %w", a.At, fileName(f.Digest), err)
	}
	if count.bytes != f.Bytes {
		err = fmt.Errorf("it has %d bytes, expected %d: truncated or damaged", count.bytes, f.Bytes)
	} else {
		err = checkSum(sum, f.Digest)
	}
	if err != nil {
		return &objectstore.Error{Kind: objectstore.Damaged, Op: "get", URL: a.At.String() + "/" + fileName(f.Digest), Err: err}
	}
	return nil
}

type counter struct{ bytes int64 }

func (c *counter) Write(p []byte) (int, error) {
	c.bytes += int64(len(p))
	return len(p), nil
}
