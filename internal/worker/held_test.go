package worker

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/internal/envtest"
	"github.com/avgpipe/avgpipe/internal/worker/control"
	"github.com/avgpipe/avgpipe/job"
)

// A disk that is full or gone for a while costs no training: the commit waits, and says for what.
func TestACommitWaitsUntilItsShardsCanBeWritten(t *testing.T) {
	a := setup(t, 2, 2, func(j *job.Job) { j.Train.Steps = 100000 })
	dir := control.ShardDir(a.Dir)
	var held string
	o := train(t, a, func(tr *trainer) {
		if err := errors.Join(os.RemoveAll(dir), os.WriteFile(dir, nil, 0o600)); err != nil { // what is there now is no directory
			t.Error(err)
		}
		round := stopAll(t, tr)
		envtest.Eventually(t, "the commit waits", func() bool {
			held = tr.Status().Held
			return held != ""
		})
		if want := fmt.Sprintf("the commit of round %d waits: ", round); !strings.Contains(held, want) || !strings.Contains(held, dir) {
			t.Errorf("held is %q, want %q and %s", held, want, dir)
		}
		if err := errors.Join(os.Remove(dir), os.Mkdir(dir, 0o700)); err != nil {
			t.Error(err)
		}
	})
	if !errors.Is(o.err, errAborted) || len(o.shards) != 2 || o.status.Held != "" {
		t.Errorf("the worker ended with %v, %d shards of its last round, held %q", o.err, len(o.shards), o.status.Held)
	}
}
