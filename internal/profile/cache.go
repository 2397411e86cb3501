package profile

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
	cacheKind    = "tuned"
	cacheVersion = 1
)

// cached is the file of a tuning's report, by the digest of everything that the choice depends on (docs/formats.md, "Tuned plan").
func cached(dir, digest string) string { return filepath.Join(dir, digest+".tuned") }

// WriteCache keeps a report, so that nothing is measured twice, and makes the directory. What a crash left there is removed. Without a
// directory it keeps nothing.
func WriteCache(dir string, r *tuner.Report) error {
	if dir == "" {
		return nil
	}
	err := os.MkdirAll(dir, 0o750)
	if err == nil {
		_, err = checkpoint.RemoveStale(dir)
	}
	if err == nil {
		err = checkpoint.WriteRecord(cached(dir, r.Digest), cacheKind, cacheVersion, r, 0o640)
	}
	if err != nil {
		return fmt.Errorf("plan cache: %w", err)
	}
	return nil
}

// ReadCache finds the report of an earlier tuning; nil when there is none. After an error it is made anew, and written over whatever was
// there.
func ReadCache(dir, digest string) (*tuner.Report, error) {
	if dir == "" {
		return nil, nil //nolint:nilnil // no cache, no report
	}
	var r tuner.Report
	path := cached(dir, digest)
	err := checkpoint.ReadRecord(path, cacheKind, cacheVersion, &r)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil //nolint:nilnil // not tuned yet
	case err != nil:
		return nil, fmt.Errorf("plan cache: %w", err)
	case r.Version != tuner.ReportVersion:
		return nil, fmt.Errorf("plan cache: %s is a report of version %d, this program reads %d", path, r.Version, tuner.ReportVersion)
	case r.Digest != digest:
		return nil, fmt.Errorf("plan cache: %s holds the plan of %.12s", path, r.Digest)
	}
	return &r, nil
}
