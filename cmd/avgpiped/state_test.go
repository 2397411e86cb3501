package main

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/avgpipe/avgpipe/internal/api"
)

// recordedData is where the job of testdata/state-v3 has its data: a state directory holds absolute paths.
const recordedData = "/tmp/avgpipe-recorded"

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
	s := newSite(t)
	s.write("avgpiped.yaml", fmt.Sprintf("state_dir: %s\nsocket: %s\nnode: recorded\ncores: 2\n", filepath.Join(s.dir, "state"), s.socket()))
	s.unpack(filepath.Join("testdata", "state-v3", "state.tar.gz"))
	text, err := os.ReadFile(filepath.Join("testdata", "state-v3", "train.txt"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(recordedData, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(recordedData) })
	if err := os.WriteFile(filepath.Join(recordedData, "train.txt"), text, 0o600); err != nil {
		t.Fatal(err)
	}
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
