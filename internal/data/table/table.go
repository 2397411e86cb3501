// Package table reads rows of text from JSON Lines, CSV, TSV and Parquet files, one at a time.
//
// It reads strictly: a row without one of the wanted columns, or with something in it that is no text, number or truth
// value, is an error that names the file and the line. Numbers are passed on as they are written.
package table

import (
	"bufio"
	"errors"
	"fmt"
	"io"
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

// reader gives the rows of one file.
type reader interface {
	// next returns the next row, io.EOF after the last, or an error at a line, which is 0 if it is about all of the file.
	next() (row Row, line int, err error)
	close() error
}

// Read passes the rows of a file to yield until it fails. A file without rows is an error. What is wrong with the file is an
// *Error; what yield returns comes back as it is.
func Read(opener *access.Opener, path string, c Config, yield func(Row) error) (err error) {
	file, err := opener.Open(path, 0)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }() // opened for reading: nothing is lost
	r, line, err := open(file, c)
	if err != nil {
		return at(path, line, err)
	}
	defer func() { _ = r.close() }() // as above
	for rows := 0; ; rows++ {
		row, line, err := r.next()
		switch {
		case errors.Is(err, io.EOF) && rows == 0:
			return at(path, 0, errors.New("it has no rows"))
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return at(path, line, err)
		}
		for i, v := range row.Values {
			if !utf8.ValidString(v) {
				return at(path, row.Line, fmt.Errorf("column %q is not UTF-8; convert the file", c.Columns[i]))
			}
		}
		if err := yield(row); err != nil {
			if errors.Is(err, ErrStop) {
				return nil
			}
			return err
		}
	}
}

func at(path string, line int, err error) error {
	e := &Error{Path: path, Line: line, Err: err}
	if missing, ok := errors.AsType[*missingError](err); ok {
		e.Nearest = missing.nearest
	}
	return e
}

// open starts to read a file. The line is that of an error.
func open(file *os.File, c Config) (reader, int, error) {
	if c.Format == Parquet {
		r, err := openParquet(file, c.Columns)
		return r, 0, err
	}
	lines := bufio.NewReaderSize(file, 1<<16)
	if mark, err := lines.Peek(3); err == nil && string(mark) == "\xef\xbb\xbf" { // the byte order mark that some programs write
		_, _ = lines.Discard(3)
	}
	switch c.Format {
	case JSONL:
		return &jsonl{lines: lineReader{r: lines}, columns: c.Columns, values: make([]string, len(c.Columns))}, 0, nil
	case CSV:
		return openCSV(lines, c)
	case TSV:
		return openTSV(lines, c)
	case Parquet:
	}
	return nil, 0, fmt.Errorf("unknown format %q", c.Format)
}

// missingError is a column that is not there.
type missingError struct {
	column  string
	there   []string
	nearest string
}

func (e *missingError) Error() string {
	return fmt.Sprintf("no column %q; there are: %s", e.column, strings.Join(e.there, ", "))
}

func missing(column string, there []string) error {
	return &missingError{column: column, there: there, nearest: nearest.Word(column, there)}
}

type lineReader struct {
	r    *bufio.Reader
	line int
	long []byte
}

// next returns a line without its end, valid until the next call.
func (l *lineReader) next() ([]byte, error) {
	l.line++
	l.long = l.long[:0]
	for {
		part, err := l.r.ReadSlice('\n')
		if err == nil && len(l.long) == 0 {
			return trimEnd(part), nil
		}
		l.long = append(l.long, part...)
		switch {
		case len(l.long) > MaxRow:
			return nil, fmt.Errorf("a line of more than %d bytes", MaxRow)
		case errors.Is(err, bufio.ErrBufferFull):
		case errors.Is(err, io.EOF) && len(l.long) > 0, err == nil:
			return trimEnd(l.long), nil
		default:
			return nil, err
		}
	}
}

func trimEnd(line []byte) []byte {
	n := len(line)
	if n > 0 && line[n-1] == '\n' {
		n--
	}
	if n > 0 && line[n-1] == '\r' {
		n--
	}
	return line[:n]
}
