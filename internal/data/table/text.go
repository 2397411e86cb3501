package table

import (
	"bufio"
	"bytes"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
)

// lines passes on the lines of a text without their ends, each valid until the next.
func (r *rows) lines(text io.Reader, each func(line []byte) error) error {
	lines := bufio.NewScanner(text)
	lines.Buffer(nil, MaxRow)
	for lines.Scan() {
		r.line++
		if err := each(lines.Bytes()); err != nil {
			return err
		}
	}
	r.line++
	if errors.Is(lines.Err(), bufio.ErrTooLong) {
		return fmt.Errorf("a line of more than %d bytes", MaxRow)
	}
	return lines.Err()
}

// object reads a line of JSON Lines.
func (r *rows) object(line []byte) error {
	if len(bytes.TrimSpace(line)) == 0 {
		return errors.New("the line is empty; each holds an object")
	}
	var object map[string]json.RawMessage
	if err := json.Unmarshal(line, &object); err != nil {
		return fmt.Errorf("not a JSON object: %w", err)
	}
	for i, column := range r.Columns {
		raw, ok := object[column]
		if !ok {
			return &missingError{column, slices.Sorted(maps.Keys(object))}
		}
		var err error
		if r.values[i], err = scalar(raw); err != nil {
			return fmt.Errorf("column %q %w", column, err)
		}
	}
	return r.pass(r.line)
}

// scalar is the text of a string, and a number or truth value as it is written.
func scalar(raw json.RawMessage) (string, error) {
	switch raw[0] {
	case '"':
		var text string
		err := json.Unmarshal(raw, &text)
		return text, err
	case '{', '[':
		return "", fmt.Errorf("is %.20s, not a text, a number or a truth value", raw)
	case 'n':
		return "", errors.New("is null")
	}
	return string(raw), nil
}

func (r *rows) csv(text io.Reader) error {
	s, records := separated{rows: r}, csv.NewReader(text)
	records.FieldsPerRecord = -1
	for {
		fields, err := records.Read()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if bad, ok := errors.AsType[*csv.ParseError](err); ok {
			r.line = bad.Line
			return fmt.Errorf("%w (the row starts at line %d, the column is %d)", bad.Err, bad.StartLine, bad.Column)
		}
		if err != nil {
			return err
		}
		line, _ := records.FieldPos(0)
		if err := s.add(line, fields); err != nil {
			return err
		}
	}
}

// separated are rows of fields, from which the wanted ones are picked.
type separated struct {
	*rows
	count int   // fields of a row
	pick  []int // the wanted ones
}

// add takes a row. In the first one, or in its numbers, it finds the wanted columns.
func (s *separated) add(line int, fields []string) error {
	s.line = line
	if s.count == 0 {
		s.count = len(fields)
		names := slices.Clone(fields)
		for i := range names {
			if !s.Header {
				names[i] = strconv.Itoa(i + 1)
			}
		}
		for _, column := range s.Columns {
			k := slices.Index(names, column)
			if k < 0 {
				return &missingError{column, names}
			}
			if slices.Contains(names[k+1:], column) {
				return fmt.Errorf("two columns are called %q", column)
			}
			s.pick = append(s.pick, k)
		}
		if s.Header {
			return nil
		}
	}
	if len(fields) != s.count {
		return fmt.Errorf("it has %d fields, the first line has %d", len(fields), s.count)
	}
	for i, k := range s.pick {
		s.values[i] = fields[k]
	}
	return s.pass(line)
}
