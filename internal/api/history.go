package api

import "time"

// History is how a job's training went: the answer of GET /v1/jobs/JOB/history. Steps that were trained again after a failure
// are there once.
type History struct {
	ID   string `json:"id"`
	Name string `json:"name"`
	Task string `json:"task"`
	// Points are in the order of their steps.
	Points      []HistoryPoint      `json:"points"`
	Evaluations []HistoryEvaluation `json:"evaluations"`
	Commits     []HistoryMark       `json:"commits"` // durable rounds
	Starts      []HistoryMark       `json:"starts"`  // of workers; the first is that of the job
	// Damaged is how many records of the file cannot be read.
	Damaged int `json:"damaged"`
}

// HistoryPoint is one optimizer step of every pipeline, or several: First to Last, counted from 0.
type HistoryPoint struct {
	First uint64    `json:"first"`
	Last  uint64    `json:"last"`
	Time  time.Time `json:"time"` // at which the last pipeline had done the last step
	// Loss is in nats per target, over the pipelines and the steps.
	Loss         *HistoryValue `json:"loss"`
	LearningRate *HistoryValue `json:"learning_rate"`
	GradientNorm *HistoryValue `json:"gradient_norm"` // before clipping; null of a job that does not clip
	TokensPerS   *HistoryValue `json:"tokens_per_s"`  // of all pipelines, over the last seconds; null at the beginning
}

// HistoryValue is a value of one or more steps and pipelines.
type HistoryValue struct {
	Mean float64 `json:"mean"`
	Min  float64 `json:"min"`
	Max  float64 `json:"max"`
}

// HistoryEvaluation is an evaluation of the center on held-out data.
type HistoryEvaluation struct {
	HistoryMark
	Loss float64 `json:"loss"`
}

// HistoryMark is something that happened after so many steps.
type HistoryMark struct {
	Steps      uint64    `json:"steps"` // that every pipeline had done
	Round      uint64    `json:"round"`
	Generation uint64    `json:"generation"` // of the worker
	Time       time.Time `json:"time"`
}

// HistoryRequest selects a part of a history.
type HistoryRequest struct {
	From   uint64 // the first step
	Points int    // at most so many points, and evaluations, steps merged evenly; 0: all that are kept
}
