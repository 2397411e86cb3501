package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/export"
)

// TestTheModelIsInOutputDirWhenTheJobIsDone, though nobody watched, and the daemon that was asked for it was killed.
func TestTheModelIsInOutputDirWhenTheJobIsDone(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.start()
	answer, err := s.client.Submit(t.Context(), api.SubmitRequest{File: "tiny.yaml", Source: tinyJob + "output: {dir: model}\n", Base: s.dir})
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(s.dir, "model")
	if e := answer.Export; e == nil || e.State != api.ExportDue || e.Dir != dir {
		t.Fatalf("the answer says %+v of output.dir", e)
	}
	s.committed(answer.ID, 10)
	s.signal(syscall.SIGKILL)
	s.start()
	weights := s.done(answer.ID)
	var last api.JobStatus
	s.until("the daemon has exported", func(ctx context.Context) bool {
		last, err = s.client.Job(ctx, answer.ID)
		return err == nil && last.Export != nil && last.Export.State != api.ExportDue
	})
	if last.Export.State != api.ExportDone {
		t.Fatalf("export: %+v", last.Export)
	}
	if got, err := os.ReadFile(filepath.Join(dir, export.WeightsFile)); err != nil || !bytes.Equal(got, weights) {
		t.Errorf("%d bytes are in output.dir, %v; the job has %d", len(got), err, len(weights))
	}
	if text := generated(t, api.InferRequest{Model: dir, Prompt: "9 bottles", Tokens: 8}); text == "" {
		t.Error("the model that is there says nothing")
	}
}
