package data

import (
	"context"
	"fmt"
	"slices"

	"github.com/avgpipe/avgpipe/internal/data/table"
	"github.com/avgpipe/avgpipe/internal/words"
)

// wholeBytes bounds the tables, all together, that Check reads to their end: on a core about 0.3 s of CSV, 2 s of JSON Lines.
const wholeBytes = 64 << 20

// check looks at the start of every file, and at all of tables that are not large.
func (o *opener) check(ctx context.Context) (Summary, error) {
	files := slices.Concat(o.train, o.held)
	s := Summary{Files: len(files), Notes: o.notes, Pinned: o.pinned()}
	for _, f := range files {
		s.Bytes += f.Bytes
	}
	present := here(files)
	if len(present) < len(files) {
		s.Notes = append(s.Notes, fmt.Sprintf("data: %s not on this host yet: what they hold is checked when the job starts", words.Count(len(files)-len(present), "file")))
	}
	switch {
	case o.Task == Samples:
		set := &Set{}
		if err := o.openNumbers(set); err != nil {
			return s, err
		}
		s.Samples, s.HeldOut = set.train.count(), set.held.count()
	case isTable(o.Format):
		return s, o.checkTables(ctx, &s, present, len(present) == len(files))
	case o.Format == formatTokens && len(present) < len(files):
		return s, o.each(ctx, present, func(_ int, f File) error {
			t, err := o.mapTokens(f)
			if err != nil {
				return err
			}
			return t.Close()
		})
	case o.Format == formatTokens, o.Format == formatText && o.vocab.IsBytes():
		return s, o.checkSizes(&s, files)
	}
	return s, nil
}

// checkTables reads the rows of each file, the first of large ones, and makes no tokens of them.
func (o *opener) checkTables(ctx context.Context, s *Summary, files []File, all bool) error {
	whole := all && s.Bytes <= wholeBytes
	if whole && (o.Task == Classification || o.Task == Translation) {
		set := &Set{}
		err := o.openTexts(ctx, set, true)
		if err == nil {
			s.Samples, s.HeldOut = set.train.count(), set.held.count()
		}
		return err
	}
	return o.each(ctx, files, func(_ int, f File) error {
		return table.Read(o.Access, f.Path, o.tableConfig(), func(table.Row) error {
			if !whole {
				return table.ErrStop
			}
			return ctx.Err()
		})
	})
}

// checkSizes counts the samples of a language from the headers of token files, or from the sizes of files whose bytes are tokens.
func (o *opener) checkSizes(s *Summary, files []File) error {
	sizes := make([]int64, len(files))
	for i, f := range files {
		if o.Format != formatTokens {
			sizes[i] = f.Bytes + 1 // the end token
			if err := o.hold(f.Path, sizes[i]); err != nil {
				return err
			}
			continue
		}
		t, err := o.mapTokens(f)
		if err != nil {
			return located(err)
		}
		sizes[i] = int64(t.Header.Tokens) //nolint:gosec // A file's size is above it.
		if err := t.Close(); err != nil {
			return err
		}
	}
	train, held, err := o.divideSizes(sizes)
	if err == nil {
		s.Samples, s.HeldOut = countWindows(tokens(train), o.step()), countWindows(tokens(held), o.step())
	}
	return err
}
