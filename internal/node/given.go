package node

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/avgpipe/avgpipe/internal/checkpoint"
	"github.com/avgpipe/avgpipe/job"
	"github.com/avgpipe/avgpipe/tuner"
)

// Reports of jobs whose counts are all given lie in the cache of plans by what their files say, so that explain finds them
// without opening model and data: STATE/plans/DIGEST.given, the report as JSON (docs/formats.md).

// givenPath is where the report of a job with given counts is kept. Two jobs that differ only in what no batch time depends on
// share one.
func givenPath(state string, s *spec, cores int) (string, error) {
	j := s.Job
	j.Name, j.Seed, j.Tuning, j.Output, j.Center = "", 0, "", job.Output{}, job.Center{}
	j.Train = job.Train{Batch: j.Train.Batch}
	j.Data.Files, j.Data.Validation, j.Data.Holdout = nil, nil, 0
	text, err := json.Marshal(map[string]any{"report": tuner.ReportVersion, "job": j, "model": s.Model, "plan": s.Plan, "cores": cores})
	if err != nil {
		return "", fmt.Errorf("digest of the job: %w", err)
	}
	sum := sha256.Sum256(text)
	return filepath.Join(plansDir(state), hex.EncodeToString(sum[:])+".given"), nil
}

// keepGiven keeps the report of a tuning that had nothing to choose.
func (n *node) keepGiven(s *spec, r *tuner.Report) error {
	path, err := givenPath(n.config.StateDir, s, len(n.config.Cores))
	if err != nil {
		return err
	}
	text, err := encodeReport(r)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return fmt.Errorf("keep a report: %w", err)
	}
	return checkpoint.WriteFile(checkpoint.OS, path, text, 0o640)
}

// findGiven finds it; nil when there is none for such a job.
func (n *node) findGiven(s *spec) (*tuner.Report, error) {
	path, err := givenPath(n.config.StateDir, s, len(n.config.Cores))
	if err != nil {
		return nil, err
	}
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil //nolint:nilnil // not tuned yet
	}
	if err != nil {
		return nil, fmt.Errorf("read a report: %w", err)
	}
	if info.Size() > maxReport {
		return nil, fmt.Errorf("read a report: %s has %d bytes, at most %d are written", path, info.Size(), maxReport)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read a report: %w", err)
	}
	var r tuner.Report
	if err := json.Unmarshal(text, &r); err != nil {
		return nil, fmt.Errorf("read a report: %s: %w", path, err)
	}
	if r.Version != tuner.ReportVersion {
		return nil, fmt.Errorf("read a report: %s is of version %d, this program reads %d", path, r.Version, tuner.ReportVersion)
	}
	if err := agrees(&s.Job, &r.Chosen); err != nil {
		return nil, fmt.Errorf("read a report: %s: %w", path, err)
	}
	r.Cached = true
	return &r, nil
}
