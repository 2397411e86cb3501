package node_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/node"
	"github.com/avgpipe/avgpipe/internal/node/nodetest"
	"github.com/avgpipe/avgpipe/internal/worker/control"
)

// script makes the process that exports run a script.
func script(text string) func(*node.Config) {
	return func(c *node.Config) { c.ExportCommand = []string{"/bin/sh", "-c", text} }
}

func exported(state api.ExportState) func(api.JobStatus) bool {
	return func(s api.JobStatus) bool { return s.Export != nil && s.Export.State == state }
}

// TestAnExportThatIsDueIsDoneByTheNextDaemon, and once.
func TestAnExportThatIsDueIsDoneByTheNextDaemon(t *testing.T) {
	t.Parallel()
	begun := filepath.Join(t.TempDir(), "begun")
	d := nodetest.Start(t, nodetest.StateDir(t), script("touch "+begun+"; exec sleep 1000"))
	id := d.Submit(t, nodetest.Job(t, d.Dir, "good", 12)+"output: {dir: out}\n")
	s := d.Until(t, id, "ends", ended)
	if s.State != api.Done || !exported(api.ExportDue)(s) || s.Export.Dir != filepath.Join(d.Dir, "out") {
		t.Errorf("state %s, export %+v; want done, due", s.State, s.Export)
	}
	nodetest.Eventually(t, "the export has begun", func() bool { return exists(begun) })
	d.Stop(t)
	for range 2 {
		d = nodetest.Start(t, d.Dir)
		d.Until(t, id, "is exported", exported(api.ExportDone))
		if !exists(filepath.Join(d.Dir, "out", "model.safetensors")) {
			t.Error("there is no model")
		}
		d.Stop(t)
	}
	if text, err := os.ReadFile(control.LogPath(jobPath(d, id))); err != nil || strings.Count(string(text), "the model was written to output.dir") != 1 {
		t.Errorf("the job's log, %v:\n%s", err, text)
	}
}

// TestAFailedExportFailsNoJob: status and log tell of it.
func TestAFailedExportFailsNoJob(t *testing.T) {
	t.Parallel()
	d := nodetest.Start(t, nodetest.StateDir(t), script("echo 'no space left' >&2; exit 1"))
	id := d.Submit(t, nodetest.Job(t, d.Dir, "good", 12)+"output: {dir: out}\n")
	s := d.Until(t, id, "ends and is not exported", exported(api.ExportFailed))
	if s.State != api.Done || !strings.Contains(s.Export.Reason, "no space left") {
		t.Errorf("state %s, export %+v", s.State, s.Export)
	}
	if text, err := os.ReadFile(control.LogPath(jobPath(d, id))); err != nil || !strings.Contains(string(text), "no space left") {
		t.Errorf("the job's log, %v:\n%s", err, text)
	}
}

// TestNobodyExportsWhatTheClientDoes, nor what was cancelled.
func TestNobodyExportsWhatTheClientDoes(t *testing.T) {
	t.Parallel()
	d := nodetest.Start(t, nodetest.StateDir(t), script("touch "+filepath.Join(t.TempDir(), "begun")))
	source := nodetest.Job(t, d.Dir, "good", 12) + "output: {dir: out}\n"
	answer, err := d.Client.Submit(t.Context(), api.SubmitRequest{File: "job.yaml", Source: source, Base: d.Dir, ClientExports: true})
	if err != nil || answer.Export != nil {
		t.Fatalf("%+v, %v", answer, err)
	}
	if s := d.Until(t, answer.ID, "ends", ended); s.Export != nil {
		t.Errorf("export %+v", s.Export)
	}
	id := d.Submit(t, nodetest.Job(t, d.Dir, "long", 100_000)+"output: {dir: out}\n")
	if _, err := d.Client.Cancel(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if s := d.Until(t, id, "ends", ended); s.Export != nil {
		t.Errorf("export %+v of a job that is %s", s.Export, s.State)
	}
}

// TestTwoJobsDoNotShareAnOutputDir, unless the second is to replace what the first writes.
func TestTwoJobsDoNotShareAnOutputDir(t *testing.T) {
	t.Parallel()
	d := nodetest.Start(t, nodetest.StateDir(t))
	first := d.Submit(t, nodetest.Job(t, d.Dir, "first", 100_000)+"output: {dir: out}\n")
	r := api.SubmitRequest{File: "job.yaml", Source: nodetest.Job(t, d.Dir, "second", 100_000) + "output: {dir: ./out/}\n", Base: d.Dir}
	if _, err := d.Client.Submit(t.Context(), r); err == nil || !strings.Contains(err.Error(), d.Dir+"/out is that of job "+first+", whose model is still to be written") {
		t.Errorf("error %v", err)
	}
	r.Force = true
	if _, err := d.Client.Submit(t.Context(), r); err != nil {
		t.Error(err)
	}
}
