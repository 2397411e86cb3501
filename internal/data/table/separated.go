package table

import (
	"bufio"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
)

// separated are rows of fields, from which the wanted ones are picked.
type separated struct {
	fields  func() (fields []string, line int, err error)
	first   []string // read already, if not nil
	line    int      // of first
	count   int      // fields of a row
	columns []string
	pick    []int // the wanted fields
	values  []string
}

func (s *separated) close() error { return nil }

func (s *separated) next() (Row, int, error) {
	fields, line, err := s.first, s.line, error(nil)
	if s.first = nil; fields == nil {
		fields, line, err = s.fields()
	}
	if err != nil {
		return Row{}, line, err
	}
	if len(fields) != s.count {
		return Row{}, line, fmt.Errorf("it has %d fields, the first line has %d", len(fields), s.count)
	}
	for i, k := range s.pick {
		s.values[i] = fields[k]
	}
	return Row{Line: line, Values: s.values}, 0, nil
}

// start reads the first line and finds the wanted columns in it.
func (s *separated) start(c Config) (reader, int, error) {
	first, line, err := s.fields()
	if err != nil {
		if errors.Is(err, io.EOF) {
			return nil, 0, errors.New("it is empty")
		}
		return nil, line, err
	}
	s.count, s.columns, s.values = len(first), c.Columns, make([]string, len(c.Columns))
	names := first
	if !c.Header {
		s.first, s.line = first, line
		names = make([]string, len(first))
		for i := range names {
			names[i] = strconv.Itoa(i + 1)
		}
	}
	for _, column := range c.Columns {
		k := slices.Index(names, column)
		if k < 0 {
			return nil, line, missing(column, slices.Clone(names))
		}
		if slices.Contains(names[k+1:], column) {
			return nil, line, fmt.Errorf("two columns are called %q", column)
		}
		s.pick = append(s.pick, k)
	}
	return s, 0, nil
}

func openCSV(r *bufio.Reader, c Config) (reader, int, error) {
	rows := csv.NewReader(r)
	rows.FieldsPerRecord = -1
	s := &separated{fields: func() ([]string, int, error) {
		fields, err := rows.Read()
		if bad, ok := errors.AsType[*csv.ParseError](err); ok {
			return nil, bad.Line, fmt.Errorf("%w (the row starts at line %d, the column is %d)", bad.Err, bad.StartLine, bad.Column)
		}
		if err != nil {
			return nil, 0, err
		}
		line, _ := rows.FieldPos(0)
		return fields, line, nil
	}}
	return s.start(c)
}

func openTSV(r *bufio.Reader, c Config) (reader, int, error) {
	lines := lineReader{r: r}
	s := &separated{fields: func() ([]string, int, error) {
		line, err := lines.next()
		if err != nil {
			return nil, lines.line, err
		}
		return strings.Split(string(line), "\t"), lines.line, nil
	}}
	return s.start(c)
}
