package api

import (
	"net/url"
	"strings"
)

// The paths of the API. What can be asked of each is a table in package server, and is described at PathDescription.
const (
	PathJobs        = "/v1/jobs"
	PathTune        = "/v1/tune"
	PathDryRun      = "/v1/dry-run"
	PathNodes       = "/v1/nodes"
	PathGPUs        = "/v1/gpus"
	PathTokens      = "/v1/tokens"
	PathCertificate = "/v1/certificate"
	PathBackup      = "/v1/backup"
	PathRestore     = "/v1/restore"
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

// ContentTypeBackup is that of a backup.
const ContentTypeBackup = "application/octet-stream"

// MaxBackup bounds a backup that is sent, bytes.
const MaxBackup = 256 << 20

// Headers of answers.
const (
	// HeaderRequest is the id of the request, by which the audit logs of the nodes name it.
	HeaderRequest = "Avgpipe-Request"
	// HeaderAge says that no node leads: how old what is answered is, in seconds. What has happened since is not in it.
	HeaderAge = "Avgpipe-Age"
	// HeaderLeaderless says why no node leads, as far as the node that answers knows.
	HeaderLeaderless = "Avgpipe-Leaderless"
)

// VersionInfo says which program a daemon is.
type VersionInfo struct {
	Version string `json:"version"`
	Go      string `json:"go"`
	Node    string `json:"node"`
}

// PathNode returns the path of a node, or of something below it.
func PathNode(name string, below ...string) string {
	return strings.Join(append([]string{PathNodes, url.PathEscape(name)}, below...), "/")
}

// PathJob returns the path of a job, or of something below it: PathJob("7", "watch").
func PathJob(ref string, below ...string) string {
	return strings.Join(append([]string{PathJobs, url.PathEscape(ref)}, below...), "/")
}
