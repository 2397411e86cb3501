package main

import (
	"bytes"
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/avgpipe/avgpipe/internal/node/nodetest"
)

// A pipe that nobody writes to keeps no verb from ending when it is told to, and one that somebody writes to is read.
func TestPipesAreReadAndLeft(t *testing.T) {
	dir := t.TempDir()
	pipe := func(name string) string {
		path := filepath.Join(dir, name)
		if err := syscall.Mkfifo(path, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	write := func(path, text string) { // returns when somebody reads
		f, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err != nil {
			t.Error(err)
			return
		}
		if _, err := f.WriteString(text); err != nil {
			t.Error(err)
		}
		f.Close()
	}
	path := pipe("left.yaml")
	for _, args := range [][]string{{"submit", path, "--dry-run"}, {"tune", path}, {"plan", "compare", "-f", path}, {"plan", "check", path}} {
		ctx, interrupt := context.WithCancel(t.Context())
		time.AfterFunc(20*time.Millisecond, interrupt)
		var out, messages bytes.Buffer
		if code := run(ctx, args, strings.NewReader(""), &out, &messages); code != exitInterrupted {
			t.Errorf("avgpipectl %s: exit code %d, want %d: %s", strings.Join(args, " "), code, exitInterrupted, messages.String())
		}
		write(path, "") // lets the reader go that was left
	}
	path = pipe("read.yaml") // of the other one, readers that were left may not be gone yet
	go write(path, "stages: 2\n")
	var out, messages bytes.Buffer
	if code := run(t.Context(), []string{"plan", "compare", "-f", path}, strings.NewReader(""), &out, &messages); code != exitRefused || !strings.Contains(messages.String(), `missing key "micro_batches"`) {
		t.Errorf("what somebody writes: exit code %d: %s", code, messages.String())
	}
}

// An empty file is called that, by every verb that reads one.
func TestEmptyFilesAreCalledEmpty(t *testing.T) {
	path := filepath.Join(t.TempDir(), "empty.yaml")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"submit", path}, {"tune", path}, {"plan", "compare", "-f", path}, {"plan", "check", path}, {"submit", "-"}} {
		if r := want(t, exitRefused, nil, args...); !strings.Contains(r.messages, " is empty") {
			t.Errorf("%v: %s", args, r.messages)
		}
	}
}

// All verbs that read a job file have one limit, that of the daemon, and name it.
func TestJobFilesHaveOneLimit(t *testing.T) {
	d := nodetest.Start(t, nodetest.StateDir(t))
	path := jobFile(t, d, "long", 50, "# "+strings.Repeat("x", 64<<10))
	for _, verb := range []string{"submit", "tune"} {
		if r := want(t, exitRefused, d, verb, path); !strings.Contains(r.messages, "has more than 65536 bytes, the most that a job file may have") {
			t.Errorf("%s: %s", verb, r.messages)
		}
	}
}

// Files that never end are refused where a user may name one.
func TestEndlessFilesAreRefused(t *testing.T) {
	for _, args := range [][]string{
		{"plan", "compare", "-f", "/dev/zero"},
		{"plan", "check", "/dev/zero"},
		{"plan", "show", "--file", "/dev/zero"},
		{"submit", "/dev/zero"},
		{"tune", "/dev/zero"},
	} {
		var out, messages bytes.Buffer
		code := run(t.Context(), args, strings.NewReader(""), &out, &messages)
		if code != exitRefused || !strings.Contains(messages.String(), "/dev/zero has more than ") {
			t.Errorf("avgpipectl %s: exit code %d: %s", strings.Join(args, " "), code, messages.String())
		}
	}
}

// A daemon that takes requests and answers none keeps nobody waiting without a word.
func TestADaemonThatDoesNotAnswerIsTold(t *testing.T) {
	dir := nodetest.StateDir(t)
	socket := filepath.Join(dir, "silent")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	var out, messages bytes.Buffer
	says := writerFunc(func(p []byte) (int, error) {
		interrupt() // it waits for ever
		return messages.Write(p)
	})
	if code := run(ctx, []string{"status", "--socket", socket}, strings.NewReader(""), &out, says); code != exitInterrupted {
		t.Errorf("status: exit code %d, want %d", code, exitInterrupted)
	}
	if want := "the daemon at " + socket + " has not answered yet; still waiting\n"; !strings.HasPrefix(messages.String(), want) {
		t.Errorf("status said %q, want %q", messages.String(), want)
	}
	if code := run(t.Context(), []string{"version", "--socket", socket}, strings.NewReader(""), &out, &messages); code != exitDone ||
		!strings.Contains(out.String(), "does not answer") {
		t.Errorf("version: exit code %d: %s", code, out.String())
	}
}
