// Package plancache keeps the reports of tunings in files, so that nothing is measured twice (docs/formats.md, "Tuned plan"). The caller
// names a file by a digest of all that its report depends on. A file is a record of package checkpoint.
package plancache

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/avgpipe/avgpipe/internal/checkpoint"
	"github.com/avgpipe/avgpipe/tuner"
)

const (
	kind    = "tuned"
	version = 1
)

// Tuned is the file of a tuning's report, by the digest of everything that the choice depends on.
func Tuned(dir, digest string) string { return filepath.Join(dir, digest+".tuned") }

// Write keeps a report in a file, and makes its directory. What a crash left there is removed.
func Write(path string, r *tuner.Report) error {
	dir := filepath.Dir(path)
	err := os.MkdirAll(dir, 0o750)
	if err == nil {
		_, err = checkpoint.RemoveStale(dir)
	}
	if err == nil {
		err = checkpoint.WriteRecord(path, kind, version, r, 0o640)
	}
	if err != nil {
		return fmt.Errorf("plan cache: %w", err)
	}
	return nil
}

// Read reads a report; nil when there is no such file.
func Read(path string) (*tuner.Report, error) {
	var r tuner.Report
	err := checkpoint.ReadRecord(path, kind, version, &r)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil //nolint:nilnil // not tuned yet
	case err != nil:
		return nil, fmt.Errorf("plan cache: %w", err)
	case r.Version != tuner.ReportVersion:
		return nil, fmt.Errorf("plan cache: %s is a report of version %d, this program reads %d", path, r.Version, tuner.ReportVersion)
	}
	return &r, nil
}
