package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/avgpipe/avgpipe/internal/agent/agenttest"
	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/node/nodetest"
	"github.com/avgpipe/avgpipe/schedule"
	"github.com/avgpipe/avgpipe/tuner"
)

// openFile writes a job file of the fake trainer whose counts are to be measured, and returns its path.
func openFile(t *testing.T, d *nodetest.Daemon, name string, steps int) string {
	t.Helper()
	path := filepath.Join(d.Dir, name+".yaml")
	if err := os.WriteFile(path, []byte(nodetest.OpenJob(t, d.Dir, name, steps)), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestTuneAndExplain holds what people read against testdata/tune. The daemon tunes and trains nothing: what it is told to have
// measured is always the same.
//
//	tune                    a file whose counts are open
//	explain tuned           a job that was tuned, while it trains
//	explain given           one whose counts were given
func TestTuneAndExplain(t *testing.T) {
	d := nodetest.Start(t, nodetest.StateDir(t))
	file := openFile(t, d, "tuned", 1e6)
	given := jobFile(t, d, "given", 1e6, "")
	datadriven.RunTest(t, "testdata/tune", func(t *testing.T, td *datadriven.TestData) string {
		if td.Cmd == "tune" {
			r := want(t, exitDone, d, "tune", file)
			return r.messages + "\n" + r.out
		}
		name := td.CmdArgs[0].Key
		want(t, exitDone, d, "submit", map[string]string{"tuned": file, "given": given}[name])
		d.Until(t, name, "trains", func(s api.JobStatus) bool { return s.State == api.Running && len(s.StageStatus) > 0 })
		r := want(t, exitDone, d, "explain", name)
		want(t, exitDone, d, "cancel", name)
		d.Until(t, name, "ends", func(s api.JobStatus) bool { return s.State.Ended() })
		out, bounds, _ := strings.Cut(r.out, "\nTIMEOUT") // some are measured
		if !strings.Contains(bounds, "a worker that does not answer is killed") {
			t.Errorf("the timeouts are %s", bounds)
		}
		return out
	})
}

func TestTuneVerb(t *testing.T) {
	d := nodetest.Start(t, nodetest.StateDir(t))
	r := want(t, exitDone, d, "tune", openFile(t, d, "open", 100), "--retune", "-o", "json")
	var report tuner.Report
	if err := json.Unmarshal([]byte(r.out), &report); err != nil || report.Chosen.Pipelines != 2 || !strings.Contains(r.messages, "step 4 of 4") {
		t.Errorf("%v: %s%s", err, r.out, r.messages)
	}
	if r := want(t, exitFailed, d, "tune", openFile(t, d, "nofit", 100)); !strings.Contains(r.messages, agenttest.NoFit) || r.out != "" {
		t.Errorf("no fit: %s%s", r.out, r.messages)
	}
	if r := want(t, exitRefused, d, "tune", openFile(t, d, "bad", 100), "--set", "stages=9"); !strings.Contains(r.messages, "nearest: 4") {
		t.Errorf("a refused file: %s", r.messages)
	}
	if r := want(t, exitDone, d, "status"); r.out != "no jobs\n" {
		t.Errorf("tuning left jobs:\n%s", r.out)
	}
	want(t, exitFailed, d, "explain", "nobody")
}

func TestSubmitWatchesATuning(t *testing.T) {
	d := nodetest.Start(t, nodetest.StateDir(t))
	r := want(t, exitDone, d, "submit", openFile(t, d, "tuneslow", 40), "--watch", "--retune")
	for _, s := range []string{"job 1 submitted\n", " of 4: fake step ", "step 40/40", "job 1 done"} {
		if !strings.Contains(r.out, s) {
			t.Errorf("no %q in:\n%s", s, r.out)
		}
	}
	if r := want(t, exitFailed, d, "submit", openFile(t, d, "nofit", 40), "--watch"); !strings.Contains(r.messages, agenttest.NoFit) {
		t.Errorf("the reason of a tuning that finds nothing: %s%s", r.out, r.messages)
	}
	if r := want(t, exitDone, d, "explain", "nofit"); !strings.Contains(r.out, "nothing was chosen for it: it ended before") || strings.Contains(r.out, "given") {
		t.Errorf("a job whose tuning failed is explained so:\n%s", r.out)
	}
}

func TestStatusShowsTuningAndDrift(t *testing.T) {
	batch, predicted := 1.25, 1.0
	var out bytes.Buffer
	for _, s := range []api.JobStatus{
		{ID: "1", State: api.Tuning, Schedule: "auto", Tuning: &api.TuneProgress{Done: 2, Total: 9, Text: "run afp", ElapsedS: 12}},
		{ID: "2", State: api.Running, Stages: 2, Pipelines: 1, MicroBatches: 4, BatchS: &batch, PredictedBatchS: &predicted, Drift: &api.Drift{Since: time.Now(), Text: "a batch takes longer"}},
	} {
		if err := (&call{out: &out, format: formatText}).show(nil, func(p *page) { printStatus(p, s) }); err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range []string{
		"step 3 of 9: run afp, for 12s so far", "stages auto, pipelines auto, micro-batches auto, schedule auto",
		"1.25s for each pipeline, 1s expected by its tuning", "a batch takes longer; see avgpipectl explain 2", "2 stages, 1 pipeline, 4 micro-batches",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in:\n%s", want, out.String())
		}
	}
}

func TestUnitsOfReports(t *testing.T) {
	for bytes, want := range map[int64]string{0: "-", 999: "999 B", 1500: "1.5 KB", 999_999: "1 MB", 12_345_678_901: "12.3 GB"} {
		if got := size(bytes); got != want {
			t.Errorf("%d bytes: %s, want %s", bytes, got, want)
		}
	}
	var out bytes.Buffer
	if err := (&call{out: &out, format: formatText}).show(nil, func(p *page) {
		printCandidates(p, &tuner.Report{Considered: 210, RunnersUp: make([]tuner.Candidate, 11)})
	}); err != nil || !strings.HasPrefix(out.String(), "\n12 of 210 candidates: ") {
		t.Errorf("12 that are listed of 210: %v\n%s", err, out.String())
	}
	if got := sampleCounts([]int{1}) + "; " + sampleCounts([]int{1, 2, 4}); got != "1 sample; 1, 2, 4 samples" {
		t.Errorf("sizes are %s", got)
	}
	long := tuner.Candidate{Devices: 4, MicroBatches: 4096, Schedule: "1f1b", Costs: schedule.Uniform(4, 1, 2, 0)}
	plan, _, err := tuner.Plan(&long)
	if err != nil {
		t.Fatal(err)
	}
	p := newPage(&out)
	if p.drawing(plan, &long); p.text.Len() > 0 {
		t.Errorf("a plan of thousands of ops is drawn:\n%.200s", p.text.String())
	}
}
