package node

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"path/filepath"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/avgpipe/avgpipe/internal/agent"
	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/checkpoint"
	"github.com/avgpipe/avgpipe/internal/cluster"
	"github.com/avgpipe/avgpipe/internal/modeldir"
	"github.com/avgpipe/avgpipe/internal/outputdir"
	"github.com/avgpipe/avgpipe/internal/spec"
)

// exportRecord lies in the directory of a job whose model the daemon has begun to write to output.dir.
type exportRecord struct {
	Begun  time.Time  `json:"begun"`
	Ended  *time.Time `json:"ended,omitempty"`
	Failed string     `json:"failed,omitempty"` // why the model is not there
}

const (
	exportKind    = "export"
	exportVersion = 1
)

// path is where the record of a job's export lies.
func (e *exporter) path(id string) string {
	return filepath.Join(agent.JobDir(e.node.config.StateDir, id), "export.record")
}

// exporter writes the models of jobs that are done to their output.dir, one after the other.
type exporter struct {
	node    *node
	mu      sync.Mutex
	records map[string]exportRecord // by job; zero: it has not begun
}

// run exports until ctx ends. What was begun and not finished then, the next daemon does again.
func (e *exporter) run(ctx context.Context) {
	for {
		state, changed := e.node.raft.Changed()
		for _, j := range state.Jobs() {
			if e.due(j) {
				e.export(ctx, j)
			}
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// planned is what is known of the way to output.dir when a job has just been admitted; nil: there is nothing to tell.
func planned(s *spec.Spec) *api.Export {
	if s.Output == nil {
		return nil
	}
	out := &api.Export{Dir: s.Job.Output.Dir, State: api.ExportDue}
	if s.Output.Refused != "" {
		out.State, out.Reason = api.ExportManual, s.Output.Refused
	}
	return out
}

// describe says how the model of a job gets to output.dir; nil where there is nothing to tell.
func (e *exporter) describe(j *cluster.Job, s *spec.Spec) *api.Export {
	out := planned(s)
	if out == nil || out.State != api.ExportDue {
		return out
	}
	switch r := e.record(j.ID); {
	case j.State.Ended() && j.State != cluster.Done:
		return nil
	case r.Ended == nil:
	case r.Failed != "":
		out.State, out.Reason = api.ExportFailed, r.Failed
	default:
		out.State = api.ExportDone
	}
	return out
}

// due reports whether the model of a job is still to be written.
func (e *exporter) due(j *cluster.Job) bool {
	if j.State != cluster.Done {
		return false
	}
	s, err := e.node.coordinator().Spec(j)
	return err == nil && s.Output != nil && s.Output.Refused == "" && e.record(j.ID).Ended == nil
}

// record returns what is known of a job's export.
func (e *exporter) record(id string) exportRecord {
	e.mu.Lock()
	defer e.mu.Unlock()
	r, known := e.records[id]
	if known {
		return r
	}
	err := checkpoint.ReadRecord(e.path(id), exportKind, exportVersion, &r)
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // it is written once more, which does no harm
		e.node.log.Warn("read what became of an export", zap.String("job", id), zap.Error(err))
		r = exportRecord{Begun: time.Now()}
	}
	e.records[id] = r
	return r
}

// keep makes a record durable.
func (e *exporter) keep(id string, r exportRecord) {
	if err := checkpoint.WriteRecord(e.path(id), exportKind, exportVersion, r, 0o640); err != nil {
		e.node.log.Warn("keep what became of an export", zap.String("job", id), zap.Error(err))
	}
	e.mu.Lock()
	e.records[id] = r
	e.mu.Unlock()
}

// An export that a daemon began and did not finish may still be held up by its process, which ends by itself.
const (
	exportAttempts = 5
	exportPause    = time.Second
)

// export writes the model of a job that is done.
func (e *exporter) export(ctx context.Context, j *cluster.Job) {
	n := e.node
	s, err := n.coordinator().Spec(j)
	if err != nil {
		return // due has read it
	}
	r := e.record(j.ID)
	t := outputdir.Target{
		Dir: s.Job.Output.Dir, User: *s.User, Force: s.Output.Force, From: modeldir.Source{Job: j.ID, Name: j.Name}, Again: !r.Begun.IsZero(),
	}
	r.Begun = time.Now()
	e.keep(j.ID, r)
	for attempt := 1; ; attempt++ {
		err = outputdir.Send(ctx, n.config.ExportCommand, t, func(w io.Writer) error { return n.Model(ctx, j.ID, w) })
		if err == nil || !t.Again || attempt == exportAttempts || ctx.Err() != nil {
			break
		}
		select {
		case <-time.After(exportPause):
		case <-ctx.Done():
		}
	}
	if ctx.Err() != nil {
		return
	}
	now := time.Now()
	r.Ended = &now
	if err != nil {
		r.Failed = err.Error()
		const text = "the model could not be written to output.dir"
		n.log.Warn(text, zap.String("job", j.ID), zap.String("directory", t.Dir), zap.Error(err))
		n.agent.Log(j.ID, zap.WarnLevel, text, zap.String("directory", t.Dir), zap.Error(err))
	} else {
		n.coordinator().Say(j.ID, "the model was written to output.dir", zap.String("directory", t.Dir))
	}
	e.keep(j.ID, r)
}
