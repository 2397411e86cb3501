package control

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
)

// ReadAssignment reads the file that a daemon wrote.
func ReadAssignment(path string) (a Assignment, err error) {
	if err = read(path, &a); err != nil {
		return a, fmt.Errorf("worker: assignment %s: %w", path, err)
	}
	return a, nil
}

// ReadTuneRequest reads the file that a daemon wrote.
func ReadTuneRequest(path string) (r TuneRequest, err error) {
	if err = read(path, &r); err != nil {
		return r, fmt.Errorf("tune: request %s: %w", path, err)
	}
	return r, nil
}

// read reads a file of this version. An unknown field is an error.
func read(path string, into any) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var head struct{ Version int }
	if err := json.Unmarshal(text, &head); err != nil {
		return err
	}
	if head.Version != Version {
		return fmt.Errorf("version %d, this program reads %d: the daemon is of another version", head.Version, Version)
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	return d.Decode(into)
}
