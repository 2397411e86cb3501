package profile

import (
	"fmt"

	"github.com/avgpipe/avgpipe/internal/plancache"
	"github.com/avgpipe/avgpipe/tuner"
)

// writeCache keeps a report. Without a directory it keeps nothing.
func writeCache(dir string, r *tuner.Report) error {
	if dir == "" {
		return nil
	}
	return plancache.Write(plancache.Tuned(dir, r.Digest), r)
}

// readCache finds the report of an earlier tuning; nil when there is none that can be read: then it is made anew, and written
// over whatever was there.
func readCache(dir, digest string) (*tuner.Report, error) {
	if dir == "" {
		return nil, nil //nolint:nilnil // no cache, no report
	}
	path := plancache.Tuned(dir, digest)
	r, err := plancache.Read(path)
	if r != nil && r.Digest != digest {
		return nil, fmt.Errorf("plan cache: %s holds the plan of %.12s", path, r.Digest)
	}
	return r, err
}
