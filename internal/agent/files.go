package agent

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/avgpipe/avgpipe/internal/access"
	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/checkpoint"
	"github.com/avgpipe/avgpipe/internal/history"
	"github.com/avgpipe/avgpipe/internal/shard"
	"github.com/avgpipe/avgpipe/internal/worker/control"
)

// Keep implements Agent.
func (l *Local) Keep(_ context.Context, job string, object []byte) (shard.Digest, error) {
	if len(object) > MaxObject {
		return "", fmt.Errorf("keep a file of job %s: it has %d bytes, %d at most", job, len(object), MaxObject)
	}
	digest, err := checkpoint.WriteObject(l.dir(job), object, 0o640)
	return shard.Digest(digest), err
}

// Object implements Agent.
func (l *Local) Object(_ context.Context, job string, d shard.Digest) ([]byte, error) {
	if _, err := shard.ParseDigest(string(d)); err != nil {
		return nil, fmt.Errorf("read a file of job %s: %w", job, err)
	}
	path := checkpoint.ObjectPath(l.dir(job), string(d))
	if info, err := os.Stat(path); err == nil && info.Size() > MaxObject {
		return nil, fmt.Errorf("%s is damaged: it has %d bytes, %d at most", path, info.Size(), MaxObject)
	}
	return checkpoint.ReadObject(l.dir(job), string(d))
}

// Companion implements Agent.
func (l *Local) Companion(_ context.Context, job, name string) ([]byte, error) {
	if !filepath.IsLocal(name) || filepath.Base(name) != name || name == "." {
		return nil, fmt.Errorf("read a file of the model of job %s: %q is no name of a file", job, name)
	}
	return (*access.Opener)(nil).ReadFile(filepath.Join(control.ModelDir(l.dir(job)), name), MaxCompanion)
}

// OpenLog implements Agent.
func (l *Local) OpenLog(_ context.Context, job string, r api.LogRequest) (LogReader, error) {
	return OpenLog(control.LogPath(l.dir(job)), r)
}

// History implements Agent.
func (l *Local) History(_ context.Context, job string) ([]history.Record, int, error) {
	return history.Read(control.HistoryPath(l.dir(job)))
}
