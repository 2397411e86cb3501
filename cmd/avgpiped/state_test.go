package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/cluster"
	"github.com/avgpipe/avgpipe/internal/cluster/raftlog"
)

// recordedData is where the job of testdata/state-v3 had its data: a state directory holds absolute paths.
const recordedData = "/tmp/avgpipe-recorded"

// relocate makes the record of jobs of the unpacked state anew, with the data in another directory.
func (s *site) relocate(data string) {
	s.t.Helper()
	dir := filepath.Join(s.dir, "state", "raft")
	jobs := s.raft(dir, func(*raftlog.Log) error { return nil })
	if err := os.RemoveAll(dir); err != nil {
		s.t.Fatal(err)
	}
	s.raft(dir, func(l *raftlog.Log) error {
		for _, j := range jobs {
			text, err := json.Marshal(j)
			if err != nil {
				return err
			}
			var moved cluster.Job
			if err := json.Unmarshal(bytes.ReplaceAll(text, []byte(recordedData), []byte(data)), &moved); err != nil {
				return err
			}
			moved.State, moved.Ended = cluster.Failed, &moved.Submitted // as it is restored; then it goes on
			if _, err := l.Apply(s.t.Context(), &cluster.RestoreJob{Saved: moved}); err != nil {
				return err
			}
			again := &cluster.ResumeJob{Job: moved.ID, Generation: moved.Generation, FromStart: len(moved.Committed) == 0, Reason: j.Reason}
			if _, err := l.Apply(s.t.Context(), again); err != nil {
				return err
			}
		}
		return nil
	})
}

// raft opens the record of jobs in a directory, hands it to f and returns the jobs that it then has.
func (s *site) raft(dir string, f func(*raftlog.Log) error) []*cluster.Job {
	s.t.Helper()
	l, err := raftlog.Open(raftlog.Config{Dir: dir, NodeID: "recorded"})
	if err != nil {
		s.t.Fatal(err)
	}
	err = l.WaitReady(s.t.Context())
	if err == nil {
		err = f(l)
	}
	if err := errors.Join(err, l.Close()); err != nil {
		s.t.Fatal(err)
	}
	return l.State().Jobs()
}

// unpack unpacks a state directory that an earlier program left.
func (s *site) unpack(archive string) {
	s.t.Helper()
	file, err := os.Open(archive)
	if err != nil {
		s.t.Fatal(err)
	}
	defer file.Close()
	plain, err := gzip.NewReader(file)
	if err != nil {
		s.t.Fatal(err)
	}
	for r := tar.NewReader(plain); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			s.t.Fatal(err)
		}
		path := filepath.Join(s.dir, "state", filepath.Clean("/"+h.Name))
		if h.FileInfo().IsDir() {
			err = os.MkdirAll(path, 0o750)
		} else if text, failed := io.ReadAll(r); failed != nil {
			err = failed
		} else {
			err = os.WriteFile(path, text, 0o600)
		}
		if err != nil {
			s.t.Fatal(err)
		}
	}
}

// TestStateOfTheProgramBefore: a daemon opens a state directory of specs of version 3. The job that was stopped in it after a commit
// resumes under the terms that it was admitted with and its model is exported; the one that waits to be tuned is still there.
func TestStateOfTheProgramBefore(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.write("avgpiped.yaml", fmt.Sprintf("state_dir: %s\nsocket: %s\nnode: recorded\ncores: 2\n", filepath.Join(s.dir, "state"), s.socket()))
	s.unpack(filepath.Join("testdata", "state-v3", "state.tar.gz"))
	text, err := os.ReadFile(filepath.Join("testdata", "state-v3", "train.txt"))
	if err != nil {
		t.Fatal(err)
	}
	data := t.TempDir()
	if err := os.WriteFile(filepath.Join(data, "train.txt"), text, 0o600); err != nil {
		t.Fatal(err)
	}
	s.relocate(data)
	s.start()
	const left = 26 // the round that was committed last
	status := s.committed("1", left+20)
	if status.Name != "recorded" || status.Generation != 2 || status.Steps != 100000 || status.Pipelines != 2 || status.Schedule != "1f1b" {
		t.Errorf("resumed as %+v", status)
	}
	if model := s.model("1"); len(model) < 4*3872 {
		t.Errorf("a model of %d bytes for 3872 parameters", len(model))
	}
	waits, err := s.client.Job(context.Background(), "2")
	if err != nil || waits.Name != "open" || waits.State != api.Queued {
		t.Errorf("the second job is %+v, %v", waits, err)
	}
	explained, err := s.client.Explain(context.Background(), "2")
	if err != nil || explained.Schedule != "auto" {
		t.Errorf("the second job is explained as %+v, %v", explained, err)
	}
}
