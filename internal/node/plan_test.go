package node_test

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/node/nodetest"
	"github.com/avgpipe/avgpipe/internal/worker/control"
)

// readAssignment is what a job's worker was last given.
func readAssignment(t *testing.T, d *nodetest.Daemon, id string) control.Assignment {
	t.Helper()
	text, err := os.ReadFile(control.AssignmentPath(filepath.Join(d.Dir, "jobs", id)))
	if err != nil {
		t.Fatal(err)
	}
	var a control.Assignment
	if err := json.Unmarshal(text, &a); err != nil {
		t.Fatal(err)
	}
	return a
}

// TestPlanOfTheUserOutlivesItsFile: workers and restarts get the grid as it was when the job was submitted, and its counts are the
// job's.
func TestPlanOfTheUserOutlivesItsFile(t *testing.T) {
	t.Parallel()
	d := nodetest.Start(t, nodetest.StateDir(t))
	path := filepath.Join(d.Dir, "plan.csv")
	if err := os.WriteFile(path, []byte("0F0,0F1,2F0,,2B0,2F1,2B1,0B0,0B1\n,1F0,1F1,3F0,3B0,3F1,3B1,1B0,1B1\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	source := strings.NewReplacer("stages: 2\n", "schedule: file:plan.csv\n", "micro_batches: 4\n", "").Replace(nodetest.Job(t, d.Dir, "own", 1e6))
	var refused *api.Error
	if _, _, err := tune(t.Context(), d, source); !errors.As(err, &refused) || !strings.Contains(refused.Message, "nothing to choose but pipelines") {
		t.Errorf("tuning a job whose plan is a file's: %v", err)
	}
	id := d.Submit(t, source)
	d.Until(t, id, "commits", committed)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(d.WorkerPID(t, id), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	d.Until(t, id, "trains again", trainsAgain)
	a := readAssignment(t, d, id)
	want := []string{"0F0 0F1 2F0 2B0 2F1 2B1 0B0 0B1", "1F0 1F1 3F0 3B0 3F1 3B1 1B0 1B1"}
	if !slices.Equal(a.Plan, want) {
		t.Errorf("plan\n%s\nwant\n%s", strings.Join(a.Plan, "\n"), strings.Join(want, "\n"))
	}
	if j := a.Spec.Job; j.Stages != 2 || j.Chunks != 2 || j.MicroBatches != 2 || len(a.Stages) != 4 || a.Restore == nil || len(a.Restore.Shards) != 4 {
		t.Errorf("%d stages of %d chunks, %d micro-batches, %d places, restore %+v; want 2 of 2, 2, 4 and as many shards",
			j.Stages, j.Chunks, j.MicroBatches, len(a.Stages), a.Restore)
	}
}

// TestChunksAreStagesToTheWorker: a schedule with several stages a device has a shard and a place for each.
func TestChunksAreStagesToTheWorker(t *testing.T) {
	t.Parallel()
	d := nodetest.Start(t, nodetest.StateDir(t))
	id := d.Submit(t, nodetest.Job(t, d.Dir, "chunks", 1e6)+"schedule: zb-v\n")
	s := d.Until(t, id, "commits", committed)
	a := readAssignment(t, d, id)
	if len(a.Plan) != 2 || len(a.Stages) != 4 || a.Spec.Job.Chunks != 2 || s.Stages != 2 {
		t.Errorf("%d devices and %d stages for a job of %d stages and %d chunks; want 2, 4, 2, 2", len(a.Plan), len(a.Stages), s.Stages, a.Spec.Job.Chunks)
	}
}
