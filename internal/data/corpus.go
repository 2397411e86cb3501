package data

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"
	"sync/atomic"
	"unicode/utf8"

	"github.com/avgpipe/avgpipe/internal/data/table"
	"github.com/avgpipe/avgpipe/internal/data/tokenfile"
	"github.com/avgpipe/avgpipe/internal/data/tokenizer"
)

// openCorpus reads documents as one line of tokens, an end token after each, and cuts it into windows.
func (o *opener) openCorpus(ctx context.Context, s *Set) error {
	files := slices.Concat(o.train, o.held)
	runs := make([]run, len(files))
	var empty atomic.Int64
	mapped := make([]*tokenfile.File, len(files))
	err := o.each(ctx, files, func(i int, f File) (err error) {
		if o.Format != formatTokens {
			runs[i], err = o.readDocuments(ctx, f, &empty)
			return err
		}
		if mapped[i], err = o.mapTokens(f); err == nil {
			err = mapped[i].Verify(ctx)
			runs[i] = run{raw: mapped[i].Tokens, width: int(mapped[i].Width)}
		}
		return err
	})
	for _, m := range mapped {
		if m != nil {
			s.mapped = append(s.mapped, m)
		}
	}
	if err != nil {
		return err
	}
	if n := empty.Load(); n > 0 {
		s.Notes = append(s.Notes, fmt.Sprintf("data.files: empty texts skipped: %d", n))
	}
	train, held, err := o.divideRuns(runs)
	if err != nil {
		return err
	}
	s.train, s.held = o.samplesOf(train), o.samplesOf(held)
	return nil
}

func (o *opener) samplesOf(runs []run) samples {
	w := windows{joined: join(runs), sequence: o.step(), vocabulary: o.vocabulary()}
	if o.Task != MaskedLanguage {
		return w
	}
	return masked{windows: w, full: o.Sequence, share: o.Masked, t: o.vocab}
}

func (o *opener) vocabulary() int {
	if o.ModelVocabulary > 0 {
		return o.ModelVocabulary
	}
	return o.vocab.Vocabulary
}

func (o *opener) step() int {
	if o.Task == MaskedLanguage {
		return o.Sequence - framing(o.vocab)
	}
	return o.Sequence
}

// divideRuns parts a corpus, one run a file, into what is trained on and what is held out.
func (o *opener) divideRuns(runs []run) (train, held []run, err error) {
	sizes := make([]int64, len(runs))
	for i, r := range runs {
		sizes[i] = int64(r.size())
	}
	trainPieces, heldPieces, err := o.divideSizes(sizes)
	if err != nil {
		return nil, nil, err
	}
	width := widthOf(o.vocab.Vocabulary)
	end := run{raw: appendID(nil, width, int(o.vocab.Special.End)), width: width}
	cut := func(pieces []piece) (out []run) {
		for _, p := range pieces {
			r := runs[p.file]
			if p.first+p.tokens() == sizes[p.file] { // the end token is there
				out = append(out, r.slice(int(p.first), r.size()))
			} else {
				out = append(out, r.slice(int(p.first), int(p.first+p.size)), end)
			}
		}
		return out
	}
	return cut(trainPieces), cut(heldPieces), nil
}

// divideSizes parts files of so many tokens each, their end tokens included.
func (o *opener) divideSizes(sizes []int64) (train, held []piece, err error) {
	if len(o.held) == 0 {
		files := make([]File, len(sizes))
		for i, n := range sizes {
			files[i] = File{Name: o.train[i].Name, Bytes: n - 1} // the end token is counted apart
		}
		return divide(files, o.Holdout, o.step())
	}
	for i, n := range sizes {
		p := piece{file: i, size: n - 1}
		if i < len(o.train) {
			train = append(train, p)
		} else {
			held = append(held, p)
		}
	}
	heldKey := "data.validation"
	if o.HoldAll {
		heldKey = "data.files"
	}
	for key, part := range map[string][]piece{"data.files": train, heldKey: held} {
		if n := tokens(part); n <= int64(o.step()) {
			return nil, nil, &Error{Key: key, Err: fmt.Errorf("the files hold %d tokens, too few for a sample of %d", n, o.Sequence)}
		}
	}
	return train, held, nil
}

// mapTokens maps a token file and holds it against the tokenizer and the model.
func (o *opener) mapTokens(f File) (*tokenfile.File, error) {
	t, err := tokenfile.Open(o.Access, f.Path)
	if err != nil {
		return nil, err
	}
	switch limit := o.vocabulary(); {
	case t.Tokenizer != o.vocab.Digest:
		err = &Error{Key: "data.tokenizer", Err: fmt.Errorf(
			"%s was written with the tokenizer of sha256 %.6x, and %s has %.6x (bytes: 000000); name the one that it was written with",
			f.Path, t.Tokenizer, o.Tokenizer, o.vocab.Digest)}
	case int(t.Vocabulary) > limit:
		err = fmt.Errorf("%s has a vocabulary of %d, the model has room for %d; raise vocab_size to %d", f.Path, t.Vocabulary, limit, t.Vocabulary)
	case t.Documents == 0:
		err = fmt.Errorf("%s holds no document", f.Path)
	}
	if err != nil {
		return nil, errors.Join(err, t.Close())
	}
	return t, nil
}

// document takes the tokens of documents: parts, of which the last ends one.
type document func(text string, last bool) error

func (o *opener) readDocuments(ctx context.Context, f File, empty *atomic.Int64) (run, error) {
	width := widthOf(o.vocab.Vocabulary)
	e := o.vocab.NewEncoder()
	var raw []byte
	var ids []int32
	held := int64(0)
	if o.vocab.IsBytes() && o.Format == formatText { // as many tokens as bytes, and the end
		held = f.Bytes + 1
		if err := o.hold(f.Path, held); err != nil {
			return run{}, err
		}
		raw = make([]byte, 0, held)
	}
	add := func(text string, last bool) (err error) {
		if ids = ids[:0]; o.vocab.IsBytes() && width == 1 { // text is its own ids
			raw = append(raw, text...)
		} else if ids, err = e.Append(ids, text); err != nil {
			return err
		}
		if last {
			ids = append(ids, o.vocab.Special.End)
		}
		for _, id := range ids {
			raw = appendID(raw, width, int(id))
		}
		err = o.hold(f.Path, int64(len(raw))-held)
		held = int64(len(raw))
		return errors.Join(err, ctx.Err())
	}
	err := o.documents(f, empty, add)
	return run{raw: raw, width: width}, err
}

func (o *opener) documents(f File, empty *atomic.Int64, add document) error {
	if o.Format == formatText {
		return o.textFile(f, add)
	}
	return table.Read(o.Access, f.Path, o.tableConfig(), func(r table.Row) error {
		text := r.Values[0]
		if text == "" {
			empty.Add(1)
			return nil
		}
		if err := add(text, true); err != nil {
			return place(f.Path, r.Line, err)
		}
		return nil
	})
}

// place puts an error about a text at its line; what is no fault of the text stays as it is.
func place(path string, line int, err error) error {
	_, known := errors.AsType[*Error](err)
	_, system := errors.AsType[*fs.PathError](err) // writing a token file failed
	if known || system || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return &table.Error{Path: path, Line: line, Err: err}
}

// Text is encoded in portions of about this many bytes, that end with a line before one that starts with no blank: there no
// usual tokenizer has a token over the border. What Open takes of memory is bounded by it.
const (
	portion    = 1 << 20
	maxPortion = 8 << 20 // of a file without such a line
)

// textFile passes a file on as one document. It must still have the size that it was listed with.
func (o *opener) textFile(f File, add document) error {
	file, err := o.Access.Open(f.Path, 0)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }() // opened for reading: nothing is lost
	digest := sha256.New()
	portions := bufio.NewScanner(io.TeeReader(io.LimitReader(file, f.Bytes+1), digest))
	portions.Buffer(make([]byte, min(f.Bytes+1, portion+portion/4)), 2*maxPortion)
	portions.Split(splitPortion)
	line, size := 1, int64(0)
	for more := portions.Scan(); more; {
		text := portions.Text()
		at := -1
		if !o.vocab.IsBytes() {
			at = invalid(text)
		}
		if at >= 0 {
			return &table.Error{
				Path: f.Path, Line: line + strings.Count(text[:at], "\n"),
				Err: fmt.Errorf("it is not UTF-8 (byte %#02x); convert it, or use the tokenizer bytes", text[at]),
			}
		}
		more = portions.Scan()
		if err := add(text, !more); err != nil {
			return o.locate(f.Path, line, text, err)
		}
		line += strings.Count(text, "\n")
		size += int64(len(text))
	}
	if err := portions.Err(); err != nil {
		return err
	}
	o.sums.Store(f.Path, [sha256.Size]byte(digest.Sum(nil)))
	return changed(f, size)
}

// splitPortion is a bufio.SplitFunc.
func splitPortion(data []byte, last bool) (advance int, token []byte, err error) {
	for at := portion - 1; at < len(data); {
		i := bytes.IndexByte(data[at:], '\n')
		if at += i + 1; i < 0 || at == len(data) {
			break
		}
		if data[at] > ' ' {
			return at, data[:at], nil
		}
	}
	switch n := len(data); {
	case n > maxPortion:
		for n = maxPortion; n > maxPortion-utf8.UTFMax && !utf8.RuneStart(data[n]); {
			n--
		}
		return n, data[:n], nil
	case last && n > 0:
		return n, data, nil
	}
	return 0, nil, nil
}

// invalid is where text stops to be UTF-8; -1 where it does not.
func invalid(text string) int {
	for at, r := range text {
		if r == utf8.RuneError && !strings.HasPrefix(text[at:], string(utf8.RuneError)) {
			return at
		}
	}
	return -1
}

// locate puts an error at the line, of a portion that starts at one, that has no tokens.
func (o *opener) locate(path string, line int, text string, err error) error {
	if _, unknown := errors.AsType[*tokenizer.UnknownError](err); unknown {
		e := o.vocab.NewEncoder()
		for part := range strings.Lines(text) {
			if _, err := e.Append(nil, part); err != nil {
				break
			}
			line++
		}
	}
	return place(path, line, err)
}

func (o *opener) tableConfig() table.Config {
	c := table.Config{Format: table.Format(o.Format), Header: !o.NoHeader}
	switch o.Task {
	case Language, MaskedLanguage:
		c.Columns = []string{cmp.Or(o.Columns.Text, "text")}
	case Classification:
		c.Columns = []string{cmp.Or(o.Columns.Label, "label"), cmp.Or(o.Columns.Text, "text")}
		if o.Columns.TextPair != "" {
			c.Columns = append(c.Columns, o.Columns.TextPair)
		}
	case Translation:
		c.Columns = []string{cmp.Or(o.Columns.Source, "source"), cmp.Or(o.Columns.Target, "target")}
	case Images, Samples:
	}
	return c
}
