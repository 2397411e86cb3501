// Package table reads rows of text from JSON Lines, CSV, TSV and Parquet files, one at a time.
//
// It reads strictly: a row without one of the wanted columns, or with something in it that is no text, number or truth
// value, is an error that names the file and the line. Numbers are passed on as they are written.
package table

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"strings"
	"unicode/utf8"

	"github.com/avgpipe/avgpipe/internal/access"
	"github.com/avgpipe/avgpipe/internal/nearest"
)

// Format is how rows are written.
type Format string

// The formats.
const (
	JSONL   Format = "jsonl"   // an object per line
	CSV     Format = "csv"     // RFC 4180
	TSV     Format = "tsv"     // fields between tabs, without quoting
	Parquet Format = "parquet" // columns of one value per row
)

// MaxRow bounds a row of a text format in bytes, and with it what a file without line ends costs.
const MaxRow = 64 << 20

// Config says what to read.
type Config struct {
	Format  Format
	Header  bool     // of CSV and TSV: the first line names the columns; else they are called 1, 2, ...
	Columns []string // the wanted ones
}

// Row is one row.
type Row struct {
	Line   int      // where it starts, from 1; of Parquet the number of the row
	Values []string // of the wanted columns, in their order; valid until the next row
}

// Error is what is wrong with a file.
type Error struct {
	Path    string
	Line    int    // 0: the whole file
	Nearest string // the nearest name that there is, of a column that there is not
	Err     error
}

// Error names the file and the line.
func (e *Error) Error() string {
	if e.Line == 0 {
		return fmt.Sprintf("%s: %v", e.Path, e.Err)
	}
	return fmt.Sprintf("%s:%d: %v", e.Path, e.Line, e.Err)
}

// Unwrap returns what is wrong.
func (e *Error) Unwrap() error { return e.Err }

// ErrStop is what a caller returns that wants no more rows: Read then returns nil.
var ErrStop = errors.New("no more rows")

// Read passes the rows of a file to yield until it fails. A file without rows is an error. What is wrong with the file is an
// *Error; what yield returns comes back as it is.
func Read(opener *access.Opener, path string, c Config, yield func(Row) error) error {
	file, err := opener.Open(path, 0)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }() // opened for reading: nothing is lost
	r := &rows{Config: c, values: make([]string, len(c.Columns)), yield: yield}
	err = r.read(file)
	switch {
	case errors.Is(r.stopped, ErrStop):
		return nil
	case r.stopped != nil:
		return r.stopped
	case err == nil && r.count > 0:
		return nil
	case err == nil:
		return &Error{Path: path, Err: errors.New("it has no rows")}
	}
	e := &Error{Path: path, Line: r.line, Err: err}
	if missing, ok := errors.AsType[*missingError](err); ok {
		e.Nearest = nearest.Word(missing.column, missing.there)
	}
	return e
}

// rows are the rows of a file that is read.
type rows struct {
	Config
	line     int // what an error is about; 0: all of the file
	values   []string
	count    int
	yield    func(Row) error
	yielding bool
	stopped  error // of yield
}

func (r *rows) read(file *os.File) error {
	if r.Format == Parquet {
		return r.parquet(file)
	}
	text := bufio.NewReaderSize(file, 1<<16)
	if mark, err := text.Peek(3); err == nil && string(mark) == "\xef\xbb\xbf" { // the byte order mark that some programs write
		_, _ = text.Discard(3)
	}
	switch r.Format {
	case JSONL:
		return r.lines(text, r.object)
	case TSV:
		s := separated{rows: r}
		return r.lines(text, func(line []byte) error { return s.add(r.line, strings.Split(string(line), "\t")) })
	case CSV:
		return r.csv(text)
	case Parquet:
	}
	return fmt.Errorf("unknown format %q", r.Format)
}

// pass passes on the row that the values hold.
func (r *rows) pass(line int) error {
	r.line = line
	for i, v := range r.values {
		if !utf8.ValidString(v) {
			return fmt.Errorf("column %q is not UTF-8; convert the file", r.Columns[i])
		}
	}
	r.count++
	r.yielding = true
	r.stopped = r.yield(Row{Line: line, Values: r.values})
	r.yielding = false
	return r.stopped
}

// missingError is a column that is not there.
type missingError struct {
	column string
	there  []string
}

func (e *missingError) Error() string {
	return fmt.Sprintf("no column %q; there are: %s", e.column, strings.Join(e.there, ", "))
}
