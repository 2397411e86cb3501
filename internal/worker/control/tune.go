package control

import (
	"path/filepath"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/gpu"
	"github.com/avgpipe/avgpipe/internal/obstacle"
	"github.com/avgpipe/avgpipe/internal/spec"
	"github.com/avgpipe/avgpipe/tuner"
)

// TuneRequest is the file that `avgpiped tune --request FILE` reads: what to choose, and on what to measure. The process prints
// TuneMessages on its standard output, one JSON object a line, and ends with 0 after a report; it ends at once, without one, when
// it is interrupted or its standard input ends: the daemon holds that open for as long as it lives.
type TuneRequest struct {
	Version int       `json:"version"` // Version
	JobID   string    `json:"job,omitempty"`
	Node    string    `json:"node"`
	Dir     string    `json:"dir"`   // for what the runs leave; it may be removed afterwards
	Spec    spec.Spec `json:"spec"`  // what is to be chosen is open
	Cores   []int     `json:"cores"` // of the processor, that devices may be pinned to; empty: no pinning
	// NodeCores is how many cores the daemon may use: where Cores is empty, the number that threads are counted by.
	NodeCores int `json:"node_cores"`
	// GPUs are those that the runs may use; of an estimate, those that the job would be given.
	GPUs     []gpu.GPU `json:"gpus,omitempty"`
	Cache    string    `json:"cache,omitempty"` // directory of cached plans; empty: none is read or written
	Data     string    `json:"data,omitempty"`  // directory of copies of what the job reads from elsewhere
	Bounded  bool      `json:"bounded"`         // measure only where that is worth its time (tuning_share of the job)
	Estimate bool      `json:"estimate"`        // measure nothing: report what is cached, or what is to be expected
	// Critical is what a spec with train.critical_batch auto weighs pipelines by; nil: nothing was measured.
	Critical *MeasuredBatch `json:"critical,omitempty"`
}

// MeasuredBatch is a critical batch that a job has measured.
type MeasuredBatch struct {
	Samples float64 `json:"samples"`
	Job     string  `json:"job"`
	Step    uint64  `json:"step"` // up to which
}

// TuneMessage is one line of what a tuning prints: progress, any number of times, and then either a report or an error. Exactly
// one of the three is set.
type TuneMessage struct {
	// Progress without its ElapsedS. Total is the most steps that may be needed: it falls where less is, and never grows once it is not 0.
	Progress *api.TuneProgress `json:"progress,omitempty"`
	Report   *tuner.Report     `json:"report,omitempty"`
	Error    string            `json:"error,omitempty"`
	// Permanent, with Error: it is about the job, so that another tuning would end with it as well.
	Permanent bool `json:"permanent,omitempty"`
	// Obstacle, with Error, is what keeps the tuning from going on for now.
	Obstacle *obstacle.Obstacle `json:"obstacle,omitempty"`
}

// TuneRequestPath is the request in a job's directory.
func TuneRequestPath(dir string) string { return filepath.Join(dir, "tune.json") }
