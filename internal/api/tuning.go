package api

import (
	"time"

	"github.com/avgpipe/avgpipe/tuner"
)

// TuneProgress is how far a tuning is: Done of Total steps, of which the current one is Text. Total is the most that may
// be needed: it falls where less is, and never grows once it is not 0.
type TuneProgress struct {
	Done     int     `json:"done"`
	Total    int     `json:"total"` // 0: it has only just begun
	Text     string  `json:"text"`  // "run 2 of 3: 2 stages, 2 pipelines, 4 micro-batches, afp"
	ElapsedS float64 `json:"elapsed_s"`
}

// TuneUpdate is a line of the answer to POST /v1/tune. Exactly one field is set; a report or an error is the last one.
type TuneUpdate struct {
	Warnings []string      `json:"warnings,omitempty"` // of the job file
	Progress *TuneProgress `json:"progress,omitempty"`
	Report   *tuner.Report `json:"report,omitempty"`
	Error    string        `json:"error,omitempty"` // why nothing could be chosen
}

// Explanation says how a job is laid over its devices and why: what `avgpipectl explain JOB -o json` prints.
type Explanation struct {
	// Timeouts are the bounds of everything that is waited for about the job, the shortest first; none of an ended job.
	Timeouts     []Timeout     `json:"timeouts,omitempty"`
	ID           string        `json:"id"`
	Name         string        `json:"name"`
	State        State         `json:"state"`
	Reason       string        `json:"reason"` // why it is in this state, for people
	Stages       int           `json:"stages"` // devices of a pipeline; this and the counts below are 0 until they are chosen
	Pipelines    int           `json:"pipelines"`
	MicroBatches int           `json:"micro_batches"`
	Schedule     string        `json:"schedule"`
	Recompute    []string      `json:"recompute"`
	Why          []string      `json:"why"`      // where each choice comes from
	Warnings     []string      `json:"warnings"` // of the job
	Plan         []string      `json:"plan"`     // the order of work, a line for each device; empty while it is not known or has more than a thousand ops
	Tuning       *TuneProgress `json:"tuning"`   // while the job is being tuned; else null
	Report       *tuner.Report `json:"report"`   // what tuning found; null of a job that was not tuned
	// Observed is what the job's worker says of the last seconds, in the terms of the report; null while it does not train. A
	// message's time is the mean of both ways, 0 where none was observed (LinkStatus). Memory is what is taken of the devices, so
	// its boundaries are 0: messages lie in the host's memory.
	Observed *tuner.Measurement `json:"observed"`
	// Memory is what each stage is expected to hold, for what; null while the counts are open. HostBytes is the most that the job's workers
	// have held of their hosts' memory, PredictedHostBytes what they are expected to; 0 while it is not known.
	Memory             []tuner.Memory `json:"predicted_memory"`
	HostBytes          int64          `json:"host_bytes"`
	PredictedHostBytes int64          `json:"predicted_host_bytes"`
	CriticalBatch      *CriticalBatch `json:"critical_batch,omitempty"` // as in the status of the job
	Drift              *Drift         `json:"drift"`                    // null while observations keep to the prediction, and where there is none
}

// DryRun says what a job would be: what `avgpipectl submit --dry-run FILE -o json` prints. Nothing was started or stored.
type DryRun struct {
	Name     string   `json:"name"`
	Why      []string `json:"why"`      // where each choice comes from
	Warnings []string `json:"warnings"` // of the job file
	// Tuning says what would be measured first, and what that would cost.
	Tuning string `json:"tuning"`
	// Budget is what the file asks for, BudgetSamples how many samples that is, rounded up to whole rounds, and Steps what each
	// pipeline takes of it; 0 where the data have to be opened first.
	Budget        string   `json:"budget"`
	BudgetSamples uint64   `json:"budget_samples"`
	Steps         uint64   `json:"steps"`
	Stages        int      `json:"stages"` // devices of a pipeline
	Pipelines     int      `json:"pipelines"`
	MicroBatches  int      `json:"micro_batches"`
	Schedule      string   `json:"schedule"`
	Recompute     []string `json:"recompute"`
	Averaging     string   `json:"averaging"`
	Plan          []string `json:"plan"` // the order of work, a line for each device; empty when it has more than a thousand ops
	// Report has the expected times and the memory of each stage, and what the estimate rests on. Before a tuning it is of what a
	// price model would choose, else of what trains.
	Report *tuner.Report `json:"report"`
}

// Drift says that a job's batch time has left its prediction, and what moved most.
type Drift struct {
	Since            time.Time `json:"since"`
	PredictedSeconds float64   `json:"predicted_seconds"` // of a batch: measured by the tuning where it was, else predicted
	ObservedSeconds  float64   `json:"observed_seconds"`
	Relative         float64   `json:"relative"` // observed over predicted, less 1: 0.25 is 25% slower
	Stage            int       `json:"stage"`    // of the term that moved most; of a transfer the stage before the link
	Term             Term      `json:"term"`
	TermPredicted    float64   `json:"term_predicted_seconds"` // of a batch of all pipelines; of a transfer, of one message
	TermObserved     float64   `json:"term_observed_seconds"`
	Text             string    `json:"text"` // all of this in a sentence
}

// Term names where a stage's time goes.
type Term string

// The terms of a stage's time.
const (
	TermCompute   Term = "compute"
	TermOptimizer Term = "optimizer"
	TermAverage   Term = "average"
	TermTransfer  Term = "transfer" // of messages between a stage and the one after it
	TermWait      Term = "wait"
)
