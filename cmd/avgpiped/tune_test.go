package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/internal/worker/control"
	"github.com/avgpipe/avgpipe/job"
	"github.com/avgpipe/avgpipe/tuner"
)

// tuneRequest writes a request for a tiny model on ref and returns its path.
func tuneRequest(t *testing.T, change func(*control.TuneRequest)) string {
	t.Helper()
	dir := t.TempDir()
	corpus := filepath.Join(dir, "corpus.txt")
	if err := os.WriteFile(corpus, []byte(strings.Repeat("little rabbits ate carrots\n", 400)), 0o600); err != nil {
		t.Fatal(err)
	}
	j := *job.Default()
	j.Version, j.Name = job.Version, "tiny"
	j.Model = job.Model{Family: "gpt2", Config: map[string]any{"n_layer": 2, "n_head": 2, "n_embd": 16, "n_positions": 16, "vocab_size": 256}}
	j.Data.Files = []string{corpus}
	j.Optimizer.LearningRate = 1e-3
	j.Train.Steps, j.Train.Batch, j.Train.EvalSamples = 8, 4, 8
	j.Stages, j.Pipelines, j.Devices.Kind = 2, 1, "ref"
	r := control.TuneRequest{Version: control.TuneRequestVersion, Node: "here", Dir: dir, Job: j, NodeCores: 2}
	if change != nil {
		change(&r)
	}
	text, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	path := control.TuneRequestPath(dir)
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// tuneOutput runs the verb and reads what it prints.
func tuneOutput(t *testing.T, path string) (messages []control.TuneMessage, code int) {
	t.Helper()
	var out, problems bytes.Buffer
	code = run(context.Background(), []string{"tune", "--request", path}, &out, &problems)
	for line := range strings.Lines(out.String()) {
		var m control.TuneMessage
		if err := json.Unmarshal([]byte(line), &m); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		messages = append(messages, m)
	}
	return messages, code
}

func TestTunePrintsProgressAndThenAReport(t *testing.T) {
	messages, code := tuneOutput(t, tuneRequest(t, nil))
	if code != exitDone || len(messages) < 3 {
		t.Fatalf("exit %d, messages %+v", code, messages)
	}
	for i, m := range messages[:len(messages)-1] {
		if m.Progress == nil || m.Report != nil || m.Error != "" || m.Progress.Done >= m.Progress.Total || m.Progress.Text == "" {
			t.Errorf("message %d: %+v", i, m)
		}
	}
	last := messages[len(messages)-1]
	if last.Report == nil || last.Report.Chosen.Verdict != tuner.Won || last.Report.Chosen.MicroBatches < 1 {
		t.Errorf("last message: %+v", last)
	}
}

func TestTunePrintsWhyItCannot(t *testing.T) {
	messages, code := tuneOutput(t, tuneRequest(t, func(r *control.TuneRequest) { r.Job.Stages = 9 }))
	if code != exitFailed {
		t.Errorf("exit %d", code)
	}
	if last := messages[len(messages)-1]; !strings.Contains(last.Error, "the largest number of stages that fits is 4") {
		t.Errorf("last message: %+v", last)
	}
}

func TestTuneRefusesARequestThatItCannotRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tune.json")
	if err := os.WriteFile(path, []byte(`{"version": 1, "unknown": 2}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, code := tuneOutput(t, path); code != exitUsage {
		t.Errorf("exit %d, want %d", code, exitUsage)
	}
}
