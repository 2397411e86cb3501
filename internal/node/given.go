package node

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"

	"github.com/avgpipe/avgpipe/internal/agent"
	"github.com/avgpipe/avgpipe/internal/plancache"
	"github.com/avgpipe/avgpipe/internal/spec"
	"github.com/avgpipe/avgpipe/job"
	"github.com/avgpipe/avgpipe/tuner"
)

// Reports of jobs whose counts are all given lie in the cache of plans by what their files say, so that explain finds them
// without opening model and data: STATE/plans/DIGEST.given, a file like those of plans that were chosen (docs/formats.md).

// givenPath is where the report of a job with given counts is kept. Two jobs that differ only in what no batch time depends on
// share one.
func givenPath(state string, s *spec.Spec, cores int) (string, error) {
	j := s.Job
	j.Name, j.Seed, j.Tuning, j.TuningShare, j.Output, j.Center = "", 0, "", 0, job.Output{}, job.Center{}
	j.Train = job.Train{Batch: j.Train.Batch}
	o, a := j.Optimizer, j.Averaging
	j.Optimizer = job.Optimizer{Name: o.Name, Momentum: one(o.Momentum), ClipNorm: one(o.ClipNorm)}
	j.Averaging = job.Averaging{Method: a.Method, Pull: a.Pull, Tau: a.Tau}
	j.Data.Files, j.Data.Validation, j.Data.Holdout = nil, nil, 0
	text, err := json.Marshal(map[string]any{"report": tuner.ReportVersion, "job": j, "model": s.Model, "plan": s.UserPlan, "cores": cores})
	if err != nil {
		return "", fmt.Errorf("digest of the job: %w", err)
	}
	sum := sha256.Sum256(text)
	return plancache.Fixed(agent.PlansDir(state), hex.EncodeToString(sum[:])), nil
}

// one is 1 for what is used, however much of it.
func one(amount float64) float64 {
	if amount > 0 {
		return 1
	}
	return 0
}

// keepGiven keeps the report of a tuning that had nothing to choose.
func (n *node) keepGiven(s *spec.Spec, r *tuner.Report) error {
	path, err := givenPath(n.config.StateDir, s, len(n.config.Cores))
	if err != nil {
		return err
	}
	return plancache.Write(path, r)
}

// findGiven finds it; nil when there is none for such a job.
func (n *node) findGiven(s *spec.Spec) (*tuner.Report, error) {
	path, err := givenPath(n.config.StateDir, s, len(n.config.Cores))
	if err != nil {
		return nil, err
	}
	r, err := plancache.Read(path)
	if r == nil || err != nil {
		return nil, err
	}
	if err := spec.Agrees(&s.Job, &r.Chosen); err != nil {
		return nil, fmt.Errorf("plan cache: %s: %w", path, err)
	}
	r.Cached = true
	return r, nil
}
