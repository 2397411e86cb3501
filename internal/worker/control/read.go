package control

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
)

// maxFileBytes bounds assignments and tune requests. The plan dominates: 1,024 stages of 4,096 micro-batches take 50 MB.
const maxFileBytes = 1 << 28

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

// read reads a file of this version or the one before. An unknown field is an error.
func read(path string, into any) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if info.Size() > maxFileBytes {
		return fmt.Errorf("%d bytes, the limit is %d", info.Size(), maxFileBytes)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(text, &fields); err != nil {
		return err
	}
	var version int
	if err := json.Unmarshal(fields["version"], &version); err != nil {
		return fmt.Errorf("its version: %w", err)
	}
	switch version {
	case Version:
	case Version - 1:
		if text, err = upgrade(fields); err != nil {
			return err
		}
	default:
		return fmt.Errorf("version %d, this program reads %d and %d: the daemon is of another version", version, Version-1, Version)
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	return d.Decode(into)
}

// upgrade gives a file of version 2, which had the parts of a spec of version 3 among its own fields, the form of version 3.
func upgrade(fields map[string]json.RawMessage) ([]byte, error) {
	s := map[string]json.RawMessage{"version": json.RawMessage("3"), "job": fields["spec"]}
	for _, key := range []string{"user", "budget", "retune"} {
		if value, ok := fields[key]; ok {
			s[key] = value
			delete(fields, key)
		}
	}
	if split, ok := fields["split"]; ok {
		s["layout"] = json.RawMessage(fmt.Sprintf(`{"split": %s}`, split))
		delete(fields, "split")
	}
	delete(fields, "schedule") // the job's
	whole, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	fields["spec"], fields["version"] = whole, json.RawMessage(strconv.Itoa(Version))
	return json.Marshal(fields)
}
