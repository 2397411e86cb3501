package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/envtest"
)

// smallDisk puts the state directory on a file system of so many bytes.
func (s *site) smallDisk(bytes int) (path string) {
	s.t.Helper()
	state := filepath.Join(s.dir, "state")
	if err := os.Mkdir(state, 0o700); err != nil {
		s.t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", state, "tmpfs", 0, fmt.Sprintf("size=%d", bytes)); err != nil {
		envtest.Missing(s.t, "no small disk can be mounted here: %v", err)
	}
	s.t.Cleanup(func() {
		if err := unix.Unmount(state, unix.MNT_DETACH); err != nil {
			s.t.Error(err)
		}
	})
	return state
}

// A disk that is full for a while costs neither the job nor a bit of its model: the commit waits for space, and goes on by itself.
func TestAJobOutlivesAFullDisk(t *testing.T) {
	t.Parallel()
	want := undisturbed(t)
	s := newSite(t)
	state := s.smallDisk(3 << 20) // room for two rounds of the tiny job, which are kept, and not for the third
	s.start()
	id := s.submit()
	var status api.JobStatus
	s.until("the job waits for space", func(ctx context.Context) bool {
		var err error
		status, err = s.client.Job(ctx, id)
		return err == nil && strings.Contains(status.Reason, "waits: no space on")
	})
	if status.CommittedRound == 0 {
		t.Error("no round was committed before the disk was full; the test needs a larger one")
	}
	if weights := s.model(id); len(weights) == 0 {
		t.Error("the last committed round cannot be exported")
	}
	if err := unix.Mount("", state, "", unix.MS_REMOUNT, fmt.Sprintf("size=%d", 64<<20)); err != nil {
		t.Fatal(err)
	}
	if got := s.done(id); !bytes.Equal(got, want) {
		t.Error("the model differs from that of an undisturbed run")
	}
	if after, err := s.client.Job(t.Context(), id); err != nil || after.Generation != 1 {
		t.Errorf("generation %d, %v; the worker should have waited", after.Generation, err)
	}
}

// A full disk can be freed by removing a job, and a job that is submitted meanwhile is told apart from one that is refused.
func TestAFullDiskIsFreedByRemovingAJob(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	state := s.smallDisk(16 << 20)
	s.start()
	id := s.submit()
	s.done(id)
	fill := filepath.Join(state, "fill")
	if err := os.WriteFile(fill, make([]byte, 16<<20), 0o600); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("the disk took all: %v", err)
	}
	answer, err := s.client.Submit(t.Context(), api.SubmitRequest{File: "tiny.yaml", Source: tinyJob, Base: s.dir})
	if err != nil || !strings.Contains(strings.Join(answer.Warnings, "\n"), "no copy of the job's record") {
		t.Errorf("submit on a full disk: %+v, %v", answer, err)
	}
	if _, err := s.client.Remove(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(fill); err != nil {
		t.Fatal(err)
	}
	s.done(answer.ID)
}

// Data that are not there when a worker starts, as on a mount that is late, hold the job; it goes on when they are back.
func TestAJobOutlivesMissingData(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.start()
	id := s.submit()
	s.committed(id, 30)
	worker := s.worker()
	s.signal(syscall.SIGKILL)
	corpus, away := filepath.Join(s.dir, "corpus.txt"), filepath.Join(s.dir, "away")
	if err := errors.Join(syscall.Kill(worker, syscall.SIGKILL), os.Rename(corpus, away)); err != nil {
		t.Fatal(err)
	}
	s.start()
	s.until("the job waits for its data", func(ctx context.Context) bool {
		status, err := s.client.Job(ctx, id)
		return err == nil && status.State == api.Waiting && strings.Contains(status.Reason, corpus+" is missing")
	})
	if err := os.Rename(away, corpus); err != nil {
		t.Fatal(err)
	}
	s.done(id)
}
