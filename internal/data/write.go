package data

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync/atomic"

	"github.com/avgpipe/avgpipe/internal/data/tokenfile"
)

// WriteTokens writes the documents that c names for a language model to one token file, in order, with a bounded part of them in
// memory. It returns what the file holds and what was skipped, a sentence each. A file that is there is replaced, but never one
// that is read. After an error nothing was written.
func WriteTokens(ctx context.Context, c Config, path string) (tokenfile.Header, []string, error) {
	defer c.keepDirectories()()
	c.Sequence = 1 // windows are cut when the file is read
	o, err := newOpener(ctx, c)
	if err != nil {
		return tokenfile.Header{}, nil, err
	}
	if o.Task != Language || o.Format == formatTokens || len(o.held) > 0 {
		return tokenfile.Header{}, nil, fmt.Errorf("data: write tokens: the task %s and the format %s have no documents to write", o.Task, o.Format)
	}
	if err := o.apart(path); err != nil {
		return tokenfile.Header{}, nil, err
	}
	n := o.vocab.Vocabulary
	w, err := tokenfile.Create(path, tokenfile.Header{
		Width: uint32(widthOf(n)), Vocabulary: uint32(n), End: uint32(o.vocab.Special.End), Tokenizer: o.vocab.Digest, //nolint:gosec // Token ids.
	})
	if err != nil {
		return tokenfile.Header{}, nil, fmt.Errorf("data: write tokens: %w", err)
	}
	if err := o.writeAll(ctx, w); err != nil {
		return tokenfile.Header{}, nil, errors.Join(err, w.Abort())
	}
	h, err := w.Close()
	return h, o.notes, err
}

// apart refuses an output that is one of the inputs, under whatever name.
func (o *opener) apart(path string) error {
	there, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("data: write tokens: %w", err)
	}
	same := func(input string) bool {
		info, err := os.Stat(input)
		return err == nil && os.SameFile(there, info)
	}
	for _, f := range o.train {
		if same(f.Path) {
			return &Error{Key: "data.files", Err: fmt.Errorf("the output %s is the input %s; write to another file", path, f.Path)}
		}
	}
	if same(o.Tokenizer) || same(filepath.Join(o.Tokenizer, "tokenizer.json")) {
		return &Error{Key: "data.tokenizer", Err: fmt.Errorf("the output %s is the tokenizer; write to another file", path)}
	}
	return nil
}

func (o *opener) writeAll(ctx context.Context, w *tokenfile.Writer) error {
	var empty atomic.Int64
	var ids []int32
	e := o.vocab.NewEncoder()
	for _, f := range o.train {
		err := o.documents(f, &empty, func(text string, last bool) (err error) {
			if ids, err = e.Append(ids[:0], text); err != nil {
				return err
			}
			return errors.Join(w.Add(ids, last), ctx.Err())
		})
		if err != nil {
			return located(err)
		}
	}
	if n := empty.Load(); n > 0 {
		o.notes = append(o.notes, fmt.Sprintf("data.files: empty texts skipped: %d", n))
	}
	return nil
}
