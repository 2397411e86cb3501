package api

import (
	"net/url"
	"strings"
)

// The paths of the API. Package server has the table of its operations, and describes it at PathDescription. JOB is an id or the
// name of exactly one job.
//
//	POST /v1/jobs               SubmitRequest -> 201 SubmitResponse; 422 Error with Problems
//	GET  /v1/jobs               -> []JobStatus, in the order of submission
//	GET  /v1/jobs/JOB           -> JobStatus
//	GET  /v1/jobs/JOB/watch     -> JobStatus per line whenever it changes, at most 4 a second; the last one has ended
//	GET  /v1/jobs/JOB/logs      -> the job's log, JSON per line; ?follow=1 goes on until the job has ended; LogRequest has more
//	GET  /v1/jobs/JOB/history   -> History; ?from=STEP from a step on, ?points=N at most so many, merged
//	GET  /v1/jobs/JOB/model     -> a tar of the exported model of the last committed round
//	GET  /v1/jobs/JOB/explain   -> Explanation
//	POST /v1/jobs/JOB/cancel    -> 202 JobStatus
//	POST /v1/tune               SubmitRequest -> TuneUpdate per line; 422 Error with Problems. Nothing is submitted
//	POST /v1/dry-run            SubmitRequest -> DryRun; 422 Error with Problems. Nothing is started or stored
//	GET  /v1/nodes              -> []NodeStatus
//	GET  /v1/version            -> VersionInfo
//	GET  /v1/openapi.json       -> this API, in OpenAPI 3.1
//	GET  /metrics               -> Prometheus text
//	GET  /healthz               -> 200: the process lives
//	GET  /readyz                -> 200, or 503 with what is wrong: Raft, the coordinator, the socket
const (
	PathJobs        = "/v1/jobs"
	PathTune        = "/v1/tune"
	PathDryRun      = "/v1/dry-run"
	PathNodes       = "/v1/nodes"
	PathVersion     = "/v1/version"
	PathDescription = "/v1/openapi.json"
	PathMetrics     = "/metrics"
	PathHealth      = "/healthz"
	PathReady       = "/readyz"
)

// DefaultSocket is where an installed daemon listens.
const DefaultSocket = "/run/avgpipe/avgpiped.sock"

// ContentTypeStream is that of answers with one JSON value per line.
const ContentTypeStream = "application/x-ndjson"

// VersionInfo says which program a daemon is.
type VersionInfo struct {
	Version string `json:"version"`
	Go      string `json:"go"`
	Node    string `json:"node"`
}

// PathJob returns the path of a job, or of something below it: PathJob("7", "watch").
func PathJob(ref string, below ...string) string {
	return strings.Join(append([]string{PathJobs, url.PathEscape(ref)}, below...), "/")
}
