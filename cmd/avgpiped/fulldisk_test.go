package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/avgpipe/avgpipe/internal/api"
)

// smallDisk puts the state directory on a file system of so many bytes.
func (s *site) smallDisk(bytes int) {
	s.t.Helper()
	state := filepath.Join(s.dir, "state")
	if err := os.Mkdir(state, 0o700); err != nil {
		s.t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", state, "tmpfs", 0, fmt.Sprintf("size=%d", bytes)); err != nil {
		s.t.Skipf("no small disk can be mounted here: %v", err)
	}
	s.t.Cleanup(func() {
		if err := unix.Unmount(state, unix.MNT_DETACH); err != nil {
			s.t.Error(err)
		}
	})
}

func TestFullDiskIsReportedAndTheLastRoundKept(t *testing.T) {
	s := newSite(t)
	s.smallDisk(3 << 20) // room for two rounds of the tiny job, which are kept, and not for the third
	s.start()
	id := s.submit()
	var status api.JobStatus
	s.until("the end of the job", func(ctx context.Context) bool {
		var err error
		status, err = s.client.Job(ctx, id)
		return err == nil && status.State.Ended()
	})
	if status.State != api.Failed || !strings.Contains(status.Reason, "no space left") || !strings.Contains(status.Reason, "bytes") {
		t.Errorf("the job is %s: %s; want a failure that says how much space is missing", status.State, status.Reason)
	}
	if status.CommittedRound == 0 {
		t.Error("no round was committed before the disk was full; the test needs a larger one")
	}
	if weights := s.model(id); len(weights) == 0 {
		t.Error("the last committed round cannot be exported")
	}
}
