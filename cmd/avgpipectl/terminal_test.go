package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/node/nodetest"
	"github.com/avgpipe/avgpipe/tuner"
)

func TestTheTimeLeftIsNeverCut(t *testing.T) {
	loss, left := 3.25, 3723.0
	s := api.JobStatus{
		State: api.Running, Step: 12345, Steps: 200000, SamplesSeen: 49380, BudgetSamples: 800000, Loss: &loss, EvalLoss: &loss, TokensPerS: 12345,
		ETAS: &left, CommittedRound: 12300,
	}
	for _, width := range []int{40, 60, 80, 120, 200} {
		var out strings.Builder
		if err := (&progress{out: &out, width: width}).bar(func(width int) string { return progressText(s, width) }, 0.5); err != nil {
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

// Lists have every job, and an error that names jobs says how many it leaves out.
func TestManyJobsAreAllListed(t *testing.T) {
	const jobs = 13
	d := nodetest.Start(t, nodetest.StateDir(t))
	path := jobFile(t, d, "same", 1e6, "")
	for range jobs {
		want(t, exitDone, d, "submit", path)
	}
	if r := want(t, exitDone, d, "status"); strings.Count(r.out, "same") != jobs {
		t.Errorf("the list of %d jobs:\n%s", jobs, r.out)
	}
	if r := want(t, exitDone, d, "__complete", "watch", ""); strings.Count(r.out, "\tsame, ") != jobs {
		t.Errorf("completion of %d jobs:\n%s", jobs, r.out)
	}
	if r := want(t, exitFailed, d, "watch", "same"); !strings.Contains(r.messages, "1, 2, 3") || !strings.Contains(r.messages, "13") && !strings.Contains(r.messages, " more") {
		t.Errorf("a name of %d jobs: %s", jobs, r.messages)
	}
	want(t, exitDone, d, "cancel", "--all", "--yes")
	for id := 1; id <= jobs; id++ {
		d.Until(t, strconv.Itoa(id), "ends", func(s api.JobStatus) bool { return s.State.Ended() })
	}
	if r := want(t, exitDone, d, "cancel", "--all"); r.out != "no job of yours is there that has not ended\n" {
		t.Errorf("cancel --all with nothing to cancel: %q", r.out)
	}
	if r := want(t, exitDone, d, "cancel", "--all", "-o", "json"); r.out != "[]\n" {
		t.Errorf("cancel --all -o json with nothing to cancel: %q", r.out)
	}
}

// What becomes of the model depends on how the job ended.
func TestStatusOfAnEndedJobWaitsForNothing(t *testing.T) {
	for state, wants := range map[api.State][2]string{
		api.Running: {"when the job is done, the daemon writes its model to /m", "when the job is done, write its model to /m with: avgpipectl export 7 --wait"},
		api.Done:    {"the daemon is writing the model to /m", "write the model to /m with: avgpipectl export 7 (the daemon cannot"},
		api.Failed:  {"nothing was written to /m, for the job is failed", "nothing was written to /m, for the job is failed"},
	} {
		for i, export := range []api.ExportState{api.ExportDue, api.ExportManual} {
			if got := exportPlan("7", state, &api.Export{Dir: "/m", State: export, Reason: "no room"}); !strings.HasPrefix(got, wants[i]) {
				t.Errorf("%s, %s: %q, want %q", state, export, got, wants[i])
			}
		}
	}
}

// Tables of status JOB and explain fit a terminal: what matters least is left out, and a sentence is broken into lines.
func TestTablesFitTheTerminal(t *testing.T) {
	loss, took := 3.25, 0.0123
	terms := tuner.Prediction{BatchSeconds: 1, SamplesPerSecond: 3, Links: make([]tuner.LinkTerms, 1)}
	for range 2 {
		terms.Stages = append(terms.Stages, tuner.StageTerms{ComputeSeconds: 0.123, Memory: tuner.Memory{Weights: 1 << 30, Activations: 12345678, Center: 1e9}})
	}
	reason := strings.Repeat("a sentence that says why ", 10)
	s := api.JobStatus{
		ID: "1", Name: "gpt2", State: api.Running, Reason: reason, Loss: &loss, Averaging: "elastic pull=predicted alpha=1 tau=1 lr x1.41", Warnings: []string{reason},
		StageStatus: []api.StageStatus{{Layers: "0-12", Device: "cpu0 of two cores"}, {}}, LinkStatus: []api.LinkStatus{{MessageBytes: 65536, DownS: &took}},
	}
	chosen := tuner.Candidate{Devices: 2, Pipelines: 2, MicroBatches: 4, Schedule: "interleaved", Predicted: terms, Reason: reason}
	report := tuner.Report{Chosen: chosen, RunnersUp: []tuner.Candidate{chosen}}
	for _, width := range []int{40, 80, 120} {
		p := &page{width: width, colors: true}
		printStatus(p, s)
		p.printf("\n")
		var head table
		head.add("reason", reason)
		p.table(&head)
		for _, part := range []func(){
			func() { printTerms(p, &chosen, &tuner.Measurement{Prediction: terms}) },
			func() { printCandidates(p, &report) },
		} {
			part()
		}
		text := regexp.MustCompile(`\x1b\[\d+m`).ReplaceAllString(p.text.String(), "")
		for line := range strings.Lines(text) {
			sentence := strings.HasPrefix(line, "a batch of each") || strings.HasPrefix(line, "2 candidates") || strings.HasPrefix(line, "0 candidates")
			if n := utf8.RuneCountInString(strings.TrimRight(line, "\n")); n > width && !sentence && !strings.Contains(line, "those that were run") {
				t.Errorf("at %d columns a line has %d: %s", width, n, line)
			}
		}
		if !strings.Contains(strings.Join(strings.Fields(text), " "), strings.TrimSpace(reason)) {
			t.Errorf("at %d columns the reason is cut:\n%s", width, text)
		}
	}
}
