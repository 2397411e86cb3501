package node_test

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/node/nodetest"
	"github.com/avgpipe/avgpipe/internal/worker/control"
)

func waiting(s api.JobStatus) bool { return s.State == api.Waiting }

func TestAFullDiskHoldsTheJobAndItsCoresGoToOthers(t *testing.T) {
	t.Parallel()
	d := nodetest.Start(t, nodetest.StateDir(t))
	id := d.Submit(t, nodetest.Job(t, d.Dir, "full-at-600", 1000))
	s := d.Until(t, id, "waits", waiting)
	for _, word := range []string{"no space on " + control.ShardDir(d.Dir+"/jobs/"+id), "1.15 EB needed", "is the last committed one"} {
		if !strings.Contains(s.Reason, word) {
			t.Errorf("the reason has no %q: %s", word, s.Reason)
		}
	}
	other := d.Submit(t, nodetest.Job(t, d.Dir, "other", 50)) // on the same cores
	if s := d.Until(t, other, "ends", ended); s.State != api.Done {
		t.Errorf("job %s is %s: %s", other, s.State, s.Reason)
	}
	if s := d.Until(t, id, "still waits", waiting); s.Generation != 1 {
		t.Errorf("%d generations were started for a disk that is full", s.Generation)
	}
	if _, err := d.Client.Cancel(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if s := d.Until(t, id, "ends", ended); s.State != api.Cancelled || !strings.Contains(s.Reason, "while it waited") {
		t.Errorf("job %s is %s: %s", id, s.State, s.Reason)
	}
}

func TestAFullDiskHoldsATuning(t *testing.T) {
	t.Parallel()
	d := nodetest.Start(t, nodetest.StateDir(t))
	id := d.Submit(t, nodetest.OpenJob(t, d.Dir, "tunefull", 50))
	if s := d.Until(t, id, "waits", waiting); !strings.Contains(s.Reason, "no space on") {
		t.Errorf("the reason is: %s", s.Reason)
	}
	if _, err := d.Client.Cancel(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	d.Until(t, id, "ends", ended)
}

// A daemon that was stopped, as a suspended host's is, has heard nothing for a while, and its workers are healthy all the same.
func TestAFrozenDaemonSparesItsWorkers(t *testing.T) {
	t.Parallel()
	d := nodetest.Spawn(t, nodetest.StateDir(t))
	id := d.Submit(t, nodetest.Job(t, d.Dir, "long", 1e6))
	d.Until(t, id, "commits", committed)
	pid := d.WorkerPID(t, id)
	d.Signal(t, syscall.SIGSTOP)
	time.Sleep(nodetest.ResponseTimeout + 500*time.Millisecond)
	d.Signal(t, syscall.SIGCONT)
	before := d.Until(t, id, "is known", func(api.JobStatus) bool { return true })
	after := d.Until(t, id, "commits further", func(s api.JobStatus) bool { return s.CommittedRound > before.CommittedRound })
	if now := d.WorkerPID(t, id); now != pid || after.Generation != 1 {
		t.Errorf("process %d, generation %d; want the same worker, %d, 1: %s", now, after.Generation, pid, after.Reason)
	}
}

func TestAFrozenWorkerIsReplaced(t *testing.T) {
	t.Parallel()
	d := nodetest.Start(t, nodetest.StateDir(t))
	id := d.Submit(t, nodetest.Job(t, d.Dir, "long", 1e6))
	d.Until(t, id, "commits", committed)
	if err := syscall.Kill(d.WorkerPID(t, id), syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if s := d.Until(t, id, "trains again", trainsAgain); !strings.Contains(s.Reason, "has not answered for") {
		t.Errorf("the reason does not say what happened: %s", s.Reason)
	}
}
