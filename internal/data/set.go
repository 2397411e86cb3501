package data

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"

	"golang.org/x/sync/errgroup"
)

// Set is an open corpus. Its methods only read it, so any number of goroutines may call them.
type Set struct {
	task     Task
	seed     uint64
	sequence int // T
	image    Image
	train    samples
	held     samples
	identity Identity
	notes    []string
}

// Identity tells corpora apart: equal ones have the same files, by name, with the same bytes, in the same order. Where they
// lie does not count.
type Identity struct {
	Files  int    `json:"files"`
	Bytes  int64  `json:"bytes"`
	Digest string `json:"digest"` // SHA-256, hexadecimal
}

// Same returns nil when a corpus is what it was, and else says how the two differ.
func (i Identity) Same(is Identity) error {
	if i == is {
		return nil
	}
	return fmt.Errorf("the data have changed: they were %v, they are %v; restore them, or submit the job anew", i, is)
}

// String describes the corpus.
func (i Identity) String() string {
	return fmt.Sprintf("%d files of %d bytes (sha256 %.12s)", i.Files, i.Bytes, i.Digest)
}

// Summary is what the names and sizes of the files tell, before any is read.
type Summary struct {
	Files, HeldOutFiles int    // a file that is cut counts in both
	Bytes               int64  // of all files
	Samples             uint64 // in an epoch
	HeldOut             uint64 // samples kept for evaluation
	Notes               []string
}

// Check does what Open does short of reading files: it finds every *Error that Open would report but for files that
// change or fail under it. The daemon calls it when a job is submitted, with the rights of the job's user in Config.Access.
func Check(ctx context.Context, c Config) (Summary, error) {
	c = c.withDefaults()
	l, train, held, err := survey(ctx, c)
	if err != nil {
		return Summary{}, err
	}
	s := Summary{
		Files: len(l.Files), HeldOutFiles: len(held), Notes: l.Skipped.Notes(),
		Samples: countWindows(room(train), c.Sequence), HeldOut: countWindows(room(held), c.Sequence),
	}
	for _, f := range l.Files {
		s.Bytes += f.Bytes
	}
	return s, nil
}

// Open lists, divides and reads the files. It fails with an *Error when the configuration or the files do not fit, and
// stops early when ctx is done.
func Open(ctx context.Context, c Config) (*Set, error) {
	c = c.withDefaults()
	l, train, held, err := survey(ctx, c)
	if err != nil {
		return nil, err
	}
	s := &Set{task: Language, seed: c.Seed, sequence: c.Sequence, notes: l.Skipped.Notes()}
	trainText, heldText := make([]byte, room(train)), make([]byte, room(held))
	slots := make([][][]byte, len(l.Files))
	for _, part := range []struct {
		pieces []piece
		text   []byte
	}{{train, trainText}, {held, heldText}} {
		rest := part.text // separators are what a new slice holds
		for _, p := range part.pieces {
			slots[p.file] = append(slots[p.file], rest[:p.size])
			rest = rest[p.tokens():]
		}
	}
	s.train, s.held = ofBytes(trainText, c.Sequence), ofBytes(heldText, c.Sequence)
	s.identity, err = read(ctx, l.Files, slots)
	if err != nil {
		return nil, err
	}
	return s, nil
}

// survey lists and divides the files, and holds them to the cap.
func survey(ctx context.Context, c Config) (l Listing, train, held []piece, err error) {
	if l, err = List(ctx, c); err != nil {
		return l, nil, nil, err
	}
	var total int64
	for _, f := range l.Files {
		if total += f.Bytes + 1; total > c.CapBytes {
			return l, nil, nil, &Error{Key: "data.files", Err: fmt.Errorf(
				"the files up to %s hold %d bytes, above the %d that are held in memory; name fewer", f.Path, total, c.CapBytes)}
		}
	}
	train, held, err = divide(l.Files, c.Holdout, c.Sequence)
	return l, train, held, err
}

// room is how many tokens the pieces take.
func room(pieces []piece) int64 {
	var n int64
	for _, p := range pieces {
		n += p.tokens()
	}
	return n
}

// ofBytes makes windows of text whose tokens are its bytes.
func ofBytes(text []byte, sequence int) windows {
	return windows{stream: newStream([]run{{raw: text, width: 1}}), sequence: sequence, vocabulary: Vocabulary}
}

// readers bounds the files open at once: reading is system calls and hashing, so more than the cores do not help.
const readers = 8

// read fills the slots of each file with its bytes, in order, and returns the identity of what it read.
func read(ctx context.Context, files []File, slots [][][]byte) (Identity, error) {
	sums := make([][sha256.Size]byte, len(files))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(min(readers, runtime.GOMAXPROCS(0)))
	for i := range files {
		group.Go(func() error {
			if err := ctx.Err(); err != nil {
				return err
			}
			return readFile(files[i], slots[i], &sums[i])
		})
	}
	if err := group.Wait(); err != nil {
		return Identity{}, fmt.Errorf("data: reading: %w", err)
	}
	digest := sha256.New()
	digest.Write([]byte("avgpipe corpus 1\n"))
	id := Identity{Files: len(files)}
	for i, f := range files {
		id.Bytes += f.Bytes
		var head []byte
		head = binary.LittleEndian.AppendUint64(head, uint64(len(f.Name)))
		head = append(head, f.Name...)
		head = binary.LittleEndian.AppendUint64(head, uint64(f.Bytes))
		digest.Write(head)
		digest.Write(sums[i][:])
	}
	id.Digest = hex.EncodeToString(digest.Sum(nil))
	return id, nil
}

// readFile reads one file, which must still have the size that it was listed with.
func readFile(f File, slots [][]byte, sum *[sha256.Size]byte) error {
	file, err := os.Open(f.Path)
	if err != nil {
		return explain(f.Path, err)
	}
	defer func() { _ = file.Close() }() // opened for reading: nothing is lost
	hash := sha256.New()
	for _, slot := range slots {
		if _, err := io.ReadFull(file, slot); err != nil {
			if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
				return fmt.Errorf("%s became shorter than its %d bytes while it was read; try again when nothing writes it", f.Path, f.Bytes)
			}
			return err
		}
		hash.Write(slot)
	}
	var more [1]byte
	switch n, err := file.Read(more[:]); {
	case n > 0:
		return fmt.Errorf("%s became longer than its %d bytes while it was read; try again when nothing writes it", f.Path, f.Bytes)
	case err != nil && !errors.Is(err, io.EOF):
		return err
	}
	hash.Sum(sum[:0])
	return nil
}
