package data

import (
	"context"
	"errors"
	"slices"

	"github.com/avgpipe/avgpipe/internal/data/table"
	"github.com/avgpipe/avgpipe/internal/data/tokenfile"
)

// wholeBytes bounds the tables, all together, that Check reads to their end: on a core about 0.3 s of CSV, 2 s of JSON Lines.
const wholeBytes = 64 << 20

// check looks at the start of every file, and at all of tables that are not large.
func (o *opener) check(ctx context.Context) (Summary, error) {
	files := slices.Concat(o.train, o.held)
	s := Summary{Files: len(files), HeldOutFiles: len(o.held), Notes: o.notes}
	for _, f := range files {
		s.Bytes += f.Bytes
	}
	switch {
	case isTable(o.Format):
		return s, o.checkTables(ctx, &s, files)
	case o.Format == formatTokens:
		return s, o.checkTokens(&s, files)
	case o.Format == formatText && o.vocab.IsBytes():
		return s, o.checkBytes(&s)
	}
	return s, nil
}

// checkTables reads the rows of each file, the first of large ones, and makes no tokens of them.
func (o *opener) checkTables(ctx context.Context, s *Summary, files []File) error {
	whole := s.Bytes <= wholeBytes
	if whole && (o.Task == Classification || o.Task == Translation) {
		return o.checkTexts(ctx, s, files)
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

func (o *opener) checkTexts(ctx context.Context, s *Summary, files []File) error {
	read, found := make([]*texts, len(files)), make([]*labelTable, len(files))
	err := o.each(ctx, files, func(i int, f File) error {
		t := &texts{}
		read[i], found[i] = t, newLabelTable(f.Path)
		return o.readRows(ctx, f, t, found[i], func(_, _ []string) error {
			t.ends = append(t.ends, 0, 0)
			return nil
		})
	})
	if err != nil {
		return err
	}
	if o.Task == Classification {
		if _, err := o.classify(read, found); err != nil {
			return err
		}
	}
	train, held, err := o.divideTexts(read)
	if err != nil {
		return err
	}
	s.Samples, s.HeldOut = train.count(), held.count()
	return nil
}

// checkTokens reads the headers, which tell everything.
func (o *opener) checkTokens(s *Summary, files []File) (err error) {
	var open []*tokenfile.File
	defer func() {
		for _, t := range open {
			err = errors.Join(err, t.Close())
		}
	}()
	runs := make([]run, len(files))
	for i, f := range files {
		t, err := o.mapTokens(f)
		if err != nil {
			return located(err)
		}
		open = append(open, t)
		runs[i] = run{raw: t.Tokens, width: int(t.Width)}
	}
	train, held, err := o.divideRuns(runs)
	if err != nil {
		return err
	}
	s.Samples, s.HeldOut = countWindows(int64(newStream(train).total()), o.step()), countWindows(int64(newStream(held).total()), o.step())
	return nil
}

// checkBytes divides files by their sizes, which are those of their tokens.
func (o *opener) checkBytes(s *Summary) error {
	for _, f := range slices.Concat(o.train, o.held) {
		if err := o.hold(f.Path, f.Bytes+1); err != nil {
			return err
		}
	}
	if len(o.held) > 0 {
		s.Samples, s.HeldOut = countWindows(room(whole(o.train)), o.step()), countWindows(room(whole(o.held)), o.step())
		return nil
	}
	train, held, err := divide(o.train, o.Holdout, o.step())
	if err != nil {
		return err
	}
	s.HeldOutFiles = len(held)
	s.Samples, s.HeldOut = countWindows(room(train), o.step()), countWindows(room(held), o.step())
	return nil
}

func whole(files []File) []piece {
	out := make([]piece, len(files))
	for i, f := range files {
		out[i] = piece{file: i, size: f.Bytes}
	}
	return out
}

func room(pieces []piece) int64 {
	var n int64
	for _, p := range pieces {
		n += p.tokens()
	}
	return n
}
