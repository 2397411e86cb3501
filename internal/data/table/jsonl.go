package table

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
)

// jsonl are objects, one a line.
type jsonl struct {
	lines   lineReader
	columns []string
	values  []string
}

func (j *jsonl) close() error { return nil }

func (j *jsonl) next() (Row, int, error) {
	line, err := j.lines.next()
	if err != nil {
		return Row{}, j.lines.line, err
	}
	if len(bytes.TrimSpace(line)) == 0 {
		return Row{}, j.lines.line, fmt.Errorf("the line is empty; each holds an object")
	}
	var object map[string]json.RawMessage
	if err := json.Unmarshal(line, &object); err != nil {
		return Row{}, j.lines.line, fmt.Errorf("not a JSON object: %w", err)
	}
	for i, column := range j.columns {
		raw, ok := object[column]
		if !ok {
			return Row{}, j.lines.line, missing(column, slices.Sorted(maps.Keys(object)))
		}
		if j.values[i], err = scalar(raw); err != nil {
			return Row{}, j.lines.line, fmt.Errorf("column %q %w", column, err)
		}
	}
	return Row{Line: j.lines.line, Values: j.values}, 0, nil
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
		return "", fmt.Errorf("is null")
	}
	return string(raw), nil
}
