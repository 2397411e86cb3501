package node_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/internal/agent/agenttest"
	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/node/nodetest"
)

// TestADryRunStartsAndStoresNothing: it says what the job would be, what would be measured at what cost, and what the time rests on.
func TestADryRunStartsAndStoresNothing(t *testing.T) {
	t.Parallel()
	d := nodetest.Start(t, nodetest.StateDir(t))
	dry := func(source string) (api.DryRun, error) {
		return d.Client.DryRun(t.Context(), api.SubmitRequest{File: "dry.yaml", Source: source, Base: d.Dir})
	}
	given, err := dry(nodetest.Job(t, d.Dir, "given", 30))
	if err != nil || given.Stages != 2 || given.BudgetSamples != 240 || given.Steps != 30 || len(given.Plan) != 2 || given.Report == nil ||
		len(given.Report.Chosen.Predicted.Stages) != 2 || given.Report.Estimate == nil || given.Report.Estimate.Basis != "a fake price" {
		t.Errorf("given counts: %+v, %v", given, err)
	}
	short, err := dry(nodetest.OpenJob(t, d.Dir, "short", 30)) // 40 s of tuning
	if err != nil || !strings.Contains(short.Tuning, "tuning would have cost about 40s") || short.Stages != 2 || short.Pipelines != 2 ||
		!slices.Contains(short.Why, short.Tuning) {
		t.Errorf("a short job: %+v, %v", short, err)
	}
	long, err := dry(nodetest.OpenJob(t, d.Dir, "long", 1_000_000))
	if err != nil || !strings.Contains(long.Tuning, "measured first, for about 40s") || long.MicroBatches != 2 ||
		!strings.Contains(long.Tuning, "before tuning, which may change stages, pipelines, micro_batches, the order of work and the layers of each stage") {
		t.Errorf("a long job: %+v, %v", long, err)
	}
	if err := os.WriteFile(filepath.Join(d.Dir, "plan.csv"), []byte("F0 F1 B0 B1\nF0 B0 F1 B1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	own, err := dry(strings.Replace(nodetest.Job(t, d.Dir, "own", 30), "micro_batches: 4", "schedule: file:plan.csv", 1))
	if err != nil || own.MicroBatches != 2 || own.Report == nil || own.Report.Estimate == nil {
		t.Errorf("a plan of a file: %+v, %v", own, err)
	}
	if _, err := dry(strings.Replace(nodetest.Job(t, d.Dir, "bad", 30), "stages: 2", "stages: 64", 1)); err == nil {
		t.Error("64 stages of 4 layers are not refused")
	}
	if _, err := dry(strings.Replace(nodetest.Job(t, d.Dir, "stored", 30), "center: {", "center: {store: s3://bucket/prefix, ", 1)); err == nil || !strings.Contains(err.Error(), "no credentials for buckets") {
		t.Errorf("a place in a bucket without credentials: %v", err)
	}
	jobs, err := d.Client.Jobs(t.Context())
	left, _ := os.ReadDir(filepath.Join(d.Dir, "jobs")) // it may not even be there
	if err != nil || len(jobs) != 0 || len(left) != 0 {
		t.Errorf("%d jobs and %d directories are left, %v", len(jobs), len(left), err)
	}
}

// TestWhatIsTooDearToMeasureIsRuled: the job trains, and says what a tuning would have cost, after a restart as well.
func TestWhatIsTooDearToMeasureIsRuled(t *testing.T) {
	t.Parallel()
	d := nodetest.Start(t, nodetest.StateDir(t))
	id := d.Submit(t, nodetest.OpenJob(t, d.Dir, "tuneruled", 30))
	s := d.Until(t, id, "ends", ended)
	if s.State != api.Done || s.Stages != 2 || s.Pipelines != 2 || s.BudgetSamples != 240 {
		t.Errorf("%s (%s): %d stages, %d pipelines, %d samples", s.State, s.Reason, s.Stages, s.Pipelines, s.BudgetSamples)
	}
	d.Stop(t)
	d = nodetest.Start(t, d.Dir)
	e, err := d.Client.Explain(t.Context(), id)
	if err != nil || !slices.Contains(e.Why, agenttest.Ruled) || e.Report != nil {
		t.Errorf("explained as %+v, %v", e, err)
	}
}
