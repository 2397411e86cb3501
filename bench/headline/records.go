package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// What was measured lies in files of JSON lines, a record each, so that a run that was interrupted goes on, and figures are combined
// again without a run.
const (
	qualityFile = "quality.jsonl"
	speedFile   = "speed.jsonl"
	fullFile    = "full.jsonl"
	memoryFile  = "memory.jsonl"
)

// records reads all records of a file. One that is not there has none.
func records[T any](dir, name string) (all []T, err error) {
	f, err := os.Open(filepath.Join(dir, name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // it was only read
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for line := 1; lines.Scan(); line++ {
		var r T
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			return nil, fmt.Errorf("%s, line %d: %w", f.Name(), line, err)
		}
		all = append(all, r)
	}
	return all, lines.Err()
}

// add appends a record to a file.
func add(dir, name string, record any) (err error) {
	line, err := json.Marshal(record)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(append(line, '\n'))
	return errors.Join(err, f.Close())
}
