package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/node/nodetest"
)

func TestTheTimeLeftIsNeverCut(t *testing.T) {
	loss, left := 3.25, 3723.0
	s := api.JobStatus{
		State: api.Running, Step: 12345, Steps: 200000, SamplesSeen: 49380, BudgetSamples: 800000, Loss: &loss, EvalLoss: &loss, TokensPerS: 12345,
		ETAS: &left, CommittedRound: 12300,
	}
	for _, width := range []int{40, 60, 80, 120, 200} {
		var out strings.Builder
		if err := (&progress{out: &out, width: width}).bar(func(room int) string { return progressText(s, room) }, 0.5); err != nil {
			t.Fatal(err)
		}
		line := strings.TrimPrefix(out.String(), "\r\x1b[K")
		if !strings.Contains(line, "1h2m3s left") || !strings.Contains(line, "  50% |█") || utf8.RuneCountInString(line) >= width {
			t.Errorf("at %d columns: %q of %d columns", width, line, utf8.RuneCountInString(line))
		}
	}
	if text := progressText(s, 1000); !strings.Contains(text, "round 12300 committed") {
		t.Errorf("with room: %q", text)
	}
}

func TestTablesLeaveOutWhatMattersLeast(t *testing.T) {
	for width, want := range map[int]string{
		40: "ID NAME REASON|1 gpt2 it trains", 24: "ID NAME REASON|1 gpt2 it trains", 13: "ID NAME|1 gpt2", 12: "ID NAME|1 gpt2",
	} {
		table := table{narrow: []string{"LOSS", "REASON"}}
		table.add("ID", "NAME", "LOSS", "REASON")
		table.add("1", "gpt2", "3.2500000000000000000000000", "it trains")
		table.fit(width)
		if got := strings.Join(table.rows[0], " ") + "|" + strings.Join(table.rows[1], " "); got != want || sum(table.widths()) > width {
			t.Errorf("at %d columns: %q of %d columns, want %q", width, got, sum(table.widths()), want)
		}
	}
}

func TestStatusFiltersAndCancelTakesSeveral(t *testing.T) {
	d := nodetest.Start(t, nodetest.StateDir(t))
	for i := range 3 {
		want(t, exitDone, d, "submit", jobFile(t, d, fmt.Sprintf("long-%d", i), 1e6, ""))
	}
	want(t, exitDone, d, "submit", jobFile(t, d, "other", 1e6, ""))
	names := func(args ...string) (found []string) {
		t.Helper()
		var jobs []api.JobStatus
		if err := json.Unmarshal([]byte(want(t, exitDone, d, append([]string{"status", "-o", "json"}, args...)...).out), &jobs); err != nil {
			t.Fatal(err)
		}
		for _, s := range jobs {
			found = append(found, s.Name)
		}
		return found
	}
	if got := names("--name", "long-*"); len(got) != 3 {
		t.Errorf("--name long-*: %v", got)
	}
	if got := names("--owner", "nobody-of-that-name"); len(got) != 0 {
		t.Errorf("--owner: %v", got)
	}
	want(t, exitRefused, d, "status", "--state", "walking")
	want(t, exitRefused, d, "status", "1", "--watch")
	ctx, interrupt := context.WithCancel(t.Context())
	var shown bytes.Buffer
	code := run(ctx, []string{"status", "--watch"}, strings.NewReader(""), writerFunc(func(p []byte) (int, error) {
		interrupt() // after the first list
		return shown.Write(p)
	}), io.Discard)
	if code != exitInterrupted || !strings.Contains(shown.String(), "long-2") {
		t.Errorf("status --watch: exit code %d\n%s", code, shown.String())
	}
	if r := want(t, exitDone, d, "__complete", "cancel", "3", ""); !strings.Contains(r.out, "1\tlong-0, ") || !strings.Contains(r.out, "other\tjob 4, ") {
		t.Errorf("completion of jobs:\n%s", r.out)
	}
	if r := want(t, exitDone, d, "__complete", "status", "--state", ""); !strings.Contains(r.out, "queued\n") {
		t.Errorf("completion of states:\n%s", r.out)
	}
	want(t, exitDone, nil, "__complete", "cancel", "") // without a daemon
	r := want(t, exitDone, d, "cancel", "1", "2")
	if !strings.Contains(r.out, "job 1 (long-0)") || !strings.Contains(r.out, "job 2 (long-1)") {
		t.Errorf("cancel 1 2: %s", r.out)
	}
	want(t, exitRefused, d, "cancel")
	want(t, exitRefused, d, "cancel", "1", "--all")
	if r := want(t, exitRefused, d, "cancel", "--all"); !strings.Contains(r.messages, "agree with --yes") {
		t.Errorf("cancel --all with nobody to ask: %s", r.messages)
	}
	want(t, exitDone, d, "cancel", "--all", "--yes")
	for _, id := range []string{"1", "2", "3", "4"} {
		d.Until(t, id, "ends", func(s api.JobStatus) bool { return s.State == api.Cancelled })
	}
	if got := names("--state", "cancelled"); len(got) != 4 {
		t.Errorf("--state cancelled: %v", got)
	}
	if r := want(t, exitDone, d, "--version"); !strings.Contains(r.out, version) {
		t.Errorf("--version: %s", r.out)
	}
}

type writerFunc func([]byte) (int, error)

func (w writerFunc) Write(p []byte) (int, error) { return w(p) }
