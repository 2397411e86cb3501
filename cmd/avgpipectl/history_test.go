package main

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"image/png"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/history"
	"github.com/avgpipe/avgpipe/internal/node/nodetest"
	"github.com/avgpipe/avgpipe/internal/worker/control"
)

// record writes the history that a job's worker would: 40 steps of loss 1/step, evaluated and durable at 20, and a commit that
// nobody agreed to.
func record(t *testing.T, d *nodetest.Daemon, id string) {
	t.Helper()
	w, err := history.Open(control.HistoryPath(filepath.Join(d.Dir, "jobs", id)), func(err error) { t.Error(err) })
	if err != nil {
		t.Fatal(err)
	}
	at := time.Unix(1e9, 0)
	w.Append(history.Mark(history.Start, 0, 0, 1, at))
	for s := range uint64(40) {
		r := history.Mark(history.Step, s, s+1, 1, at)
		r.First, r.Last = s, s
		r.Values[history.Loss] = history.One(1 / float64(s+1))
		r.Values[history.LearningRate] = history.One(0.01)
		w.Append(r)
	}
	e := history.Mark(history.Evaluation, 20, 20, 1, at)
	e.Values[history.Loss] = history.One(0.5)
	w.Append(e)
	w.Append(history.Mark(history.Commit, 20, 20, 1, at))
	w.Append(history.Mark(history.Commit, 1<<30, 1<<30, 1, at))
	w.Sync()
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestHistory(t *testing.T) {
	d := nodetest.Start(t, nodetest.StateDir(t))
	var ids []string
	for _, name := range []string{"first", "second"} {
		want(t, exitDone, d, "submit", jobFile(t, d, name, 40, ""), "--watch")
		s := d.Until(t, name, "ends", func(s api.JobStatus) bool { return s.State.Ended() })
		record(t, d, s.ID)
		ids = append(ids, s.ID)
	}

	var h api.History
	if err := json.Unmarshal([]byte(want(t, exitDone, d, "history", "first", "-o", "json").out), &h); err != nil {
		t.Fatal(err)
	}
	if h.ID != ids[0] || len(h.Points) != 40 || len(h.Evaluations) != 1 || len(h.Commits) != 1 || len(h.Starts) != 1 {
		t.Errorf("history: %d points, %d evaluations, %d commits, %d starts", len(h.Points), len(h.Evaluations), len(h.Commits), len(h.Starts))
	}
	if p := h.Points[9]; p.First != 9 || p.Loss == nil || p.Loss.Mean != 0.1 || p.GradientNorm != nil {
		t.Errorf("point 9 is %+v", p)
	}
	if err := json.Unmarshal([]byte(want(t, exitDone, d, "history", "first", "--from", "30", "-o", "json").out), &h); err != nil || h.Points[0].First != 30 {
		t.Errorf("from step 30: %v, %v", h.Points, err)
	}

	rows, err := csv.NewReader(strings.NewReader(want(t, exitDone, d, "history", "first", "second", "-o", "csv").out)).ReadAll()
	if err != nil || len(rows) != 1+2*(40+3) || rows[10][7] != "0.1" || rows[10][1] != "step" || rows[41][7] != "0.5" || rows[41][1] != "evaluation" {
		t.Errorf("%d rows: %v, %v", len(rows), rows[min(len(rows)-1, 41)], err)
	}

	text := want(t, exitDone, d, "history", "first", "second").out
	for _, part := range []string{"A " + ids[0] + " first", "B " + ids[1] + " second", "● evaluation", "nats per token by optimizer steps"} {
		if !strings.Contains(text, part) {
			t.Errorf("no %q in\n%s", part, text)
		}
	}
	if r := want(t, exitDone, d, "history", "first", "--metric", "norm"); !strings.Contains(r.out, "clip_norm") {
		t.Errorf("a norm that nobody computed: %s", r.out)
	}
	images(t, d)
	if r := want(t, exitFailed, d, "history", "nobody"); !strings.Contains(r.messages, `no job "nobody"`) {
		t.Errorf("no such job: %s", r.messages)
	}
}

// images draws to files, and never over one.
func images(t *testing.T, d *nodetest.Daemon) {
	t.Helper()
	dir := t.TempDir()
	path := filepath.Join(dir, "loss.png")
	want(t, exitDone, d, "history", "first", "second", "--out", path)
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := png.Decode(bytes.NewReader(text)); err != nil {
		t.Error(err)
	}
	if r := want(t, exitRefused, d, "history", "first", "--out", path); !strings.Contains(r.messages, "--force") {
		t.Errorf("over a file: %s", r.messages)
	}
	if after, err := os.ReadFile(path); err != nil || !bytes.Equal(after, text) {
		t.Errorf("a refused write changed the file, %v", err)
	}
	want(t, exitDone, d, "history", "first", "--out", path, "--force", "--metric", "lr")
	if r := want(t, exitDone, d, "history", "first", "-o", "svg"); !strings.HasPrefix(r.out, "<?xml") || math.Abs(float64(len(r.out)-8000)) > 8000 {
		t.Errorf("an svg of %d bytes", len(r.out))
	}
}

func TestHistoryUsage(t *testing.T) {
	for says, args := range map[string][]string{
		"did you mean loss?":        {"history", "1", "--metric", "los"},
		"text, json, csv, svg, png": {"history", "1", "-o", "gif"},
		"allowed is 8 to 200":       {"history", "1", "--height", "3"},
		"usage: avgpipectl history": {"history"},
	} {
		if r := want(t, exitRefused, nil, args...); !strings.Contains(r.messages, says) {
			t.Errorf("%v: no %q in %s", args, says, r.messages)
		}
	}
}
