package main

import (
	"bytes"
	"context"
	"encoding/json"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/node/nodetest"
)

// printed collects what a running command prints.
type printed struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (p *printed) Write(text []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.text.Write(text)
}

func (p *printed) String() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.text.String()
}

// Who follows a log sees every line once, whatever ends meanwhile: the worker, or the daemon.
func TestFollowedLogsOutliveTheDaemon(t *testing.T) {
	d := nodetest.Start(t, nodetest.StateDir(t))
	want(t, exitDone, d, "submit", jobFile(t, d, "long", 1e6, ""))
	d.Until(t, "1", "commits", func(s api.JobStatus) bool { return s.CommittedRound > 0 })
	var out printed
	var messages bytes.Buffer
	done := make(chan int, 1)
	go func() {
		done <- run(context.WithoutCancel(t.Context()), []string{"logs", "long", "-f", "-o", "json"}, strings.NewReader(""), &out, &messages)
	}()
	nodetest.Eventually(t, "the log is followed", func() bool { return strings.Contains(out.String(), "starting a worker") })
	d.Stop(t)
	d = nodetest.Start(t, d.Dir)
	d.Until(t, "1", "trains again", func(s api.JobStatus) bool { return s.State == api.Running && s.Generation == 2 })
	want(t, exitDone, d, "cancel", "long")
	if code := <-done; code != exitDone {
		t.Errorf("exit code %d: %s", code, messages.String())
	}
	whole := want(t, exitDone, d, "logs", "long", "-o", "json").out
	if followed := out.String(); !strings.HasPrefix(whole, followed) || !strings.Contains(followed, "job cancelled") || strings.Count(followed, "starting a worker") != 2 {
		t.Errorf("followed:\n%s\nthe log:\n%s", followed, whole)
	}
	if !strings.Contains(messages.String(), "waiting for it to come back") {
		t.Errorf("nothing was said: %s", messages.String())
	}
	var last struct{ Msg string }
	tail := strings.TrimSpace(want(t, exitDone, d, "logs", "long", "--tail", "1", "-o", "json").out)
	if err := json.Unmarshal([]byte(tail), &last); err != nil || !strings.HasSuffix(whole, tail+"\n") {
		t.Errorf("the last line is %s, %v", tail, err)
	}
	if r := want(t, exitDone, d, "logs", "long", "--since", "2200-01-01"); r.out != "" {
		t.Errorf("lines of the future: %s", r.out)
	}
}

func TestFailedJobIsAnError(t *testing.T) {
	d := nodetest.Start(t, nodetest.StateDir(t))
	want(t, exitFailed, d, "submit", "--watch", jobFile(t, d, "nan-at-50", 1000, ""))
	nodetest.Eventually(t, "the failure is an error in the job's log, which is written after its state", func() bool {
		return strings.Contains(want(t, exitDone, d, "logs", "1", "--level", "error").out, "error avgpiped job failed")
	})
}

func TestLogsUsage(t *testing.T) {
	for says, args := range map[string][]string{
		"did you mean warn?":  {"logs", "1", "--level", "wart"},
		"--tail is -1":        {"logs", "1", "--tail", "-1"},
		`--since "yesterday"`: {"logs", "1", "--since", "yesterday"},
	} {
		if r := want(t, exitRefused, nil, args...); !strings.Contains(r.messages, says) {
			t.Errorf("%v: no %q in %s", args, says, r.messages)
		}
	}
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for since, at := range map[string]time.Time{
		"10m": now.Add(-10 * time.Minute), "2026-01-01": now.Truncate(24 * time.Hour).Add(-24 * time.Hour), "2026-01-02T03:04:05Z": now,
	} {
		o := logsOptions{since: since}
		if err := o.check(now); err != nil || !o.Since.Equal(at) {
			t.Errorf("since %s is %v, %v; want %v", since, o.Since, err, at)
		}
	}
}

func TestTerminalsGetNothingToObey(t *testing.T) {
	var b strings.Builder
	w := &plainWriter{&b}
	if _, err := w.Write([]byte("a\x1b[31mb\tc\n\x07\x7fé\u009b\x9b")); err != nil {
		t.Fatal(err)
	}
	if got, want := b.String(), `a\x1b[31mb`+"\tc\n"+`\x07\x7fé\x9b\x9b`; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got := renderLog([]byte(`{"level":"info","time":"2026-01-02T03:04:05.678Z","msg":"x\u001b[2J","k":1,"accuracy":null}`)); strings.Contains(got, "\x1b") || strings.Contains(got, "nil") || !strings.Contains(got, "k=1") {
		t.Errorf("a log line renders as %q", got)
	}
}
