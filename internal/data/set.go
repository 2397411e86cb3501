package data

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"github.com/avgpipe/avgpipe/internal/data/table"
	"github.com/avgpipe/avgpipe/internal/data/tokenfile"
	"github.com/avgpipe/avgpipe/internal/data/tokenizer"
	"github.com/avgpipe/avgpipe/internal/words"
	"github.com/avgpipe/avgpipe/job"
)

// Set is an open corpus. Its methods only read it, so any number of goroutines may call them, but for Close.
type Set struct {
	Identity  Identity             // tells whether another host, or a later run, has the same files
	Notes     []string             // what was skipped, a sentence each
	Labels    []string             // the names of the classes, by number; nil where there are none
	Tokenizer *tokenizer.Tokenizer // what the tokens are of; nil for images

	task        Task
	seed        uint64
	sequence    int // T: the tokens in a sample; 1 for images
	image       Image
	train, held samples
	mapped      []*tokenfile.File
	looked      atomic.Uint64 // how often files of mapped were held against what they were
}

// Identity tells corpora apart: equal ones have the same files, by name, with the same bytes, in the same order, and the
// same tokenizer. Where they lie does not count. Of a token file, the digest is that in its header,
// which its tokens have to have.
type Identity struct {
	Files  int    `json:"files"`
	Bytes  int64  `json:"bytes"`
	Digest string `json:"digest"` // SHA-256, hexadecimal
}

// String describes the corpus.
func (i Identity) String() string {
	return fmt.Sprintf("%d files of %d bytes (sha256 %.12s)", i.Files, i.Bytes, i.Digest)
}

// Summary is what the names, sizes and first rows of the files tell.
type Summary struct {
	Files   int
	Bytes   int64  // of all files
	Samples uint64 // in an epoch; 0 when only reading all files tells
	HeldOut uint64 // samples kept for evaluation; 0 likewise
	Notes   []string
	Pinned
}

// Check does what Open does as far as that is cheap: it finds every *Error of the configuration, of names and permissions, of the
// tokenizer, of headers, and of the rows of tables, all of them when the tables have at most 64 MiB together, else the first of each
// file. The daemon calls it when a job is submitted, with the rights of the job's user in Config.Access. What is wrong
// further on, and text without a token, Open finds, before training starts.
func Check(ctx context.Context, c Config) (Summary, error) {
	defer c.keepDirectories()()
	o, err := newOpener(ctx, c)
	if err != nil {
		return Summary{}, err
	}
	return o.check(ctx)
}

// Open lists, reads and divides the files. It fails with an *Error when the configuration or the files do not fit, and
// stops early when ctx is done. The caller closes the set.
func Open(ctx context.Context, c Config) (*Set, error) {
	defer c.keepDirectories()()
	o, err := newOpener(ctx, c)
	if err != nil {
		return nil, err
	}
	if slices.ContainsFunc(slices.Concat(o.train, o.held), isAway) {
		return nil, errAway
	}
	s := &Set{task: o.Task, seed: o.Seed, sequence: max(o.Sequence, 1), Tokenizer: o.vocab, Notes: o.notes}
	switch o.Task {
	case Images:
		s.sequence = 1
		err = o.openImages(ctx, s)
	case Classification, Translation:
		err = o.openTexts(ctx, s, false)
	case Samples:
		s.sequence = 1
		err = o.openNumbers(s)
	case Language, MaskedLanguage:
		err = o.openCorpus(ctx, s)
	}
	if err == nil {
		err = o.identify(ctx, s)
	}
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// Close unmaps token files. The set must not be used afterwards.
func (s *Set) Close() error {
	var errs []error
	for _, f := range s.mapped {
		errs = append(errs, f.Close())
	}
	s.mapped = nil
	return errors.Join(errs...)
}

type opener struct {
	Config
	vocab  *tokenizer.Tokenizer // nil for images
	train  []File               // also what is held out, when validation is empty
	held   []File
	notes  []string
	memory atomic.Int64 // bytes that are held
	sums   sync.Map     // by path: the digests of files that were hashed as they were read
}

// newOpener lists the files and opens the tokenizer.
func newOpener(ctx context.Context, c Config) (*opener, error) {
	o := &opener{Config: c.withDefaults()}
	if err := o.Validate(); err != nil {
		return nil, err
	}
	train, skipped, err := o.list(ctx, "data.files", o.Files)
	if err != nil {
		return nil, err
	}
	held, skippedToo, err := o.list(ctx, "data.validation", o.Validation)
	if err != nil {
		return nil, err
	}
	o.train, o.held, o.notes = train, held, append(skipped.Notes(), skippedToo.Notes()...)
	if both := inBoth(train, held); len(both) > 0 {
		o.notes = append(o.notes, fmt.Sprintf("data.validation: %s trained on as well (%s): what is evaluated there says little about other texts",
			words.Count(len(both), "file"), both[0].Path))
	}
	if o.HoldAll {
		o.train, o.held = nil, append(o.train, o.held...)
	}
	return o, o.openTokenizer()
}

// inBoth are the files of two lists.
func inBoth(a, b []File) (both []File) {
	there := map[string]bool{}
	for _, f := range a {
		there[f.Path] = true
	}
	for _, f := range b {
		if there[f.Path] {
			both = append(both, f)
		}
	}
	return both
}

// openTokenizer opens the tokenizer, and holds it against the model and the task.
func (o *opener) openTokenizer() (err error) {
	if !o.Task.texts() {
		return nil
	}
	refuse := func(format string, args ...any) error {
		return &Error{Key: "data.tokenizer", Err: fmt.Errorf(format, args...)}
	}
	switch {
	case o.Vocabulary != nil:
		o.vocab, err = tokenizer.Parse(o.Vocabulary)
	case o.Tokenizer != job.TokenizerBytes:
		o.vocab, err = tokenizer.Open(o.Access, o.Tokenizer)
	default:
		o.vocab = tokenizer.Bytes()
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return &Error{Key: "data.tokenizer", Nearest: Nearest(o.Access, o.Tokenizer), Err: fmt.Errorf("%w; want %s, or the path of a tokenizer.json", err, job.TokenizerBytes)}
	case err != nil:
		return refuse("%w", err)
	}
	special, n := o.vocab.Special, o.vocab.Vocabulary
	switch {
	case o.ModelVocabulary > 0 && n > o.ModelVocabulary:
		return refuse("%s makes %d token ids, the model has room for %d; raise vocab_size to %d", o.Tokenizer, n, o.ModelVocabulary, n)
	case special.End == tokenizer.None && o.Task != Classification:
		return refuse("%s has no token for the end of a text (</s>, <eos>, <|endoftext|>, <|end_of_text|> or [SEP])", o.Tokenizer)
	case special.Mask == tokenizer.None && o.Task == MaskedLanguage:
		return refuse("%s has no token that hides another ([MASK] or <mask>)", o.Tokenizer)
	case (o.Task == Language || o.Task == MaskedLanguage) && o.step() < 1:
		return &Error{Key: "data.sequence", Nearest: "3", Err: fmt.Errorf("a sample of %d tokens has no room beside its first and last token", o.Sequence)}
	case o.Columns.TextPair != "" && o.vocab.Pair == nil:
		return refuse("%s has no token to separate the two texts of a pair ([SEP] or </s>)", o.Tokenizer)
	}
	return nil
}

func (o *opener) hold(path string, bytes int64) error {
	if total := o.memory.Add(bytes); total > o.CapBytes {
		return &Error{Key: "data.files", Err: fmt.Errorf(
			"what is read up to %s takes %d bytes, above the %d that are held in memory; name fewer files, or write them once by `avgpipectl tokenize`",
			path, total, o.CapBytes)}
	}
	return nil
}

// readers bounds the files open at once: reading is system calls and hashing, so more than the cores do not help.
const readers = 8

// each calls f for every file, several at a time, and returns the first error of the files in their order.
func (o *opener) each(ctx context.Context, files []File, f func(i int, file File) error) error {
	errs := make([]error, len(files))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(min(readers, runtime.GOMAXPROCS(0)))
	for i, file := range files {
		group.Go(func() error {
			if errs[i] = ctx.Err(); errs[i] == nil {
				errs[i] = f(i, file)
			}
			return errs[i]
		})
	}
	if group.Wait() == nil {
		return nil
	}
	for _, err := range errs {
		if err != nil && !errors.Is(err, context.Canceled) {
			return located(err)
		}
	}
	return fmt.Errorf("data: reading: %w", ctx.Err())
}

// located puts an error about a file under the key of the job file that it belongs to.
func located(err error) error {
	if _, ok := errors.AsType[*Error](err); ok {
		return err
	}
	e := &Error{Key: "data.files", Err: err}
	if bad, ok := errors.AsType[*table.Error](err); ok && bad.Nearest != "" {
		e.Key, e.Nearest = "data.columns", bad.Nearest
	}
	return e
}

func (o *opener) identify(ctx context.Context, s *Set) error {
	files := slices.Concat(o.train, o.held)
	sums := make([][sha256.Size]byte, len(files))
	err := o.each(ctx, files, func(i int, f File) (err error) {
		if o.Format == formatTokens {
			sums[i] = s.mapped[i].Digest
			return nil
		}
		sum, _ := o.sums.Load(f.Path)
		var read bool
		if sums[i], read = sum.([sha256.Size]byte); !read {
			sums[i], err = o.sumOf(f)
		}
		return err
	})
	if err != nil {
		return err
	}
	digest := sha256.New()
	if o.vocab != nil && o.vocab.IsBytes() && o.Format == formatText && len(o.held) == 0 {
		digest.Write([]byte("avgpipe corpus 1\n"))
	} else {
		fmt.Fprintf(digest, "avgpipe corpus 2\n%s %s %d %q\n", o.Task, o.Format, len(o.train), o.Labels) //nolint:errcheck // A hash takes everything.
		if o.vocab != nil {
			sum := o.vocab.Digest
			digest.Write(sum[:])
		}
	}
	if o.Task == Samples {
		fmt.Fprintf(digest, "%d %d\n", o.Counts.Train, o.Counts.HeldOut) //nolint:errcheck // as above
	}
	id := Identity{Files: len(files)}
	for i, f := range files {
		id.Bytes += f.Bytes
		var head []byte
		head = binary.LittleEndian.AppendUint64(head, uint64(len(f.Name)))
		head = append(head, f.Name...)
		head = binary.LittleEndian.AppendUint64(head, uint64(f.Bytes)) //nolint:gosec // A file's size.
		digest.Write(head)
		digest.Write(sums[i][:])
	}
	id.Digest = hex.EncodeToString(digest.Sum(nil))
	s.Identity = id
	return nil
}

// sumOf is the digest of a file that a library reads in its own way. It must still have the size that it was listed with.
func (o *opener) sumOf(f File) (sum [sha256.Size]byte, err error) {
	file, err := o.Access.Open(f.Path, 0)
	if err != nil {
		return sum, err
	}
	defer func() { _ = file.Close() }() // opened for reading: nothing is lost
	hash := sha256.New()
	n, err := io.Copy(hash, file)
	if err != nil {
		return sum, err
	}
	hash.Sum(sum[:0])
	return sum, changed(f, n)
}

func changed(f File, bytes int64) error {
	switch {
	case bytes < f.Bytes:
		return fmt.Errorf("%s became shorter than its %d bytes while it was read; try again when nothing writes it", f.Path, f.Bytes)
	case bytes > f.Bytes:
		return fmt.Errorf("%s became longer than its %d bytes while it was read; try again when nothing writes it", f.Path, f.Bytes)
	}
	return nil
}
