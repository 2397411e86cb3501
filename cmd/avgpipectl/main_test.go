package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/cockroachdb/datadriven"
	"go.uber.org/goleak"

	"github.com/avgpipe/avgpipe/internal/agent/agenttest"
	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/modeldir"
	"github.com/avgpipe/avgpipe/internal/node/nodetest"
)

func TestMain(m *testing.M) {
	nodetest.Main(func() int {
		code := m.Run()
		if err := goleak.Find(); code == 0 && err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return code
	})
}

// result is what a run of the program gave.
type result struct {
	code          int
	out, messages string
}

// avgpipectl runs the program against a daemon; nil: none.
func avgpipectl(t *testing.T, d *nodetest.Daemon, args ...string) result {
	t.Helper()
	t.Setenv("AVGPIPE_SOCKET", "/nonexistent/daemon.sock")
	if d != nil {
		t.Setenv("AVGPIPE_SOCKET", nodetest.Socket(d.Dir))
	}
	var out, messages bytes.Buffer
	code := run(t.Context(), args, strings.NewReader(""), &out, &messages)
	return result{code, out.String(), messages.String()}
}

// want runs the program and fails the test unless it ends with a code.
func want(t *testing.T, code int, d *nodetest.Daemon, args ...string) result {
	t.Helper()
	r := avgpipectl(t, d, args...)
	if r.code != code {
		t.Fatalf("avgpipectl %s: exit code %d, want %d\n%s%s", strings.Join(args, " "), r.code, code, r.out, r.messages)
	}
	return r
}

// jobFile writes a job file of the fake trainer and returns its path.
func jobFile(t *testing.T, d *nodetest.Daemon, name string, steps int, more string) string {
	t.Helper()
	path := filepath.Join(d.Dir, name+".yaml")
	if err := os.WriteFile(path, []byte(nodetest.Job(t, d.Dir, name, steps)+more), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestHelp(t *testing.T) {
	datadriven.RunTest(t, "testdata/help", func(t *testing.T, d *datadriven.TestData) string {
		var args []string
		for _, a := range d.CmdArgs {
			args = append(args, a.Key)
		}
		return want(t, exitDone, nil, append(args, "--help")...).out
	})
}

func TestEveryVerbExplainsItself(t *testing.T) {
	for _, c := range newRootCommand().Commands() {
		if c.Name() == "plan" || c.Hidden || c.Name() == "help" || c.Name() == "completion" {
			continue // plan's own tests hold it, the others are cobra's
		}
		if !strings.Contains(c.Long, exitHelp) || c.Example == "" {
			t.Errorf("%s: help without exit codes or example", c.Name())
		}
		if c.Flags().Lookup("output") == nil {
			t.Errorf("%s: no -o", c.Name())
		}
	}
}

func TestUsage(t *testing.T) {
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"stauts"}, exitRefused, "did you mean status?"},
		{[]string{"stauts", "-o", "json"}, exitRefused, `no verb "stauts"; did you mean status?`},
		{[]string{"nodes", "drian", "--wait", "a"}, exitRefused, `no verb "drian"; did you mean drain?`},
		{[]string{"status", "-o", "jsn"}, exitRefused, "did you mean json?"},
		{[]string{"submit", "--dryrun", "x"}, exitRefused, "unknown flag: --dryrun; did you mean --dry-run?"},
		{[]string{"submit", "--zzzzzz", "x"}, exitRefused, "see avgpipectl submit --help"},
		{[]string{"resume", "1", "--from-round", "1", "--from-start"}, exitRefused, "--from-start stands beside --from-round"},
		{[]string{"submit"}, exitRefused, "usage: avgpipectl submit FILE"},
		{[]string{"submit", "/nonexistent.yaml"}, exitRefused, "read the job file"},
		{[]string{"submit", "../../examples/gpt2.yaml", "--set", "schedule=afb"}, exitRefused, "nearest: afp"},
		{[]string{"submit", "../../examples/gpt2.yaml", "--set", "model.config.n_layers=2"}, exitRefused, "nearest: n_layer"},
		{[]string{"submit", "../../examples/gpt2.yaml"}, exitNoDaemon, "no daemon at"},
		{[]string{"submit", "../../examples/gpt2.yaml", "--set", "data.files=[/dev/nul]"}, exitNoDaemon, "data.files[0]: /dev/nul does not exist\n  1 | --set data.files=[/dev/nul]\n    |                   ^\n  nearest: /dev/null\nno daemon at"},
		{[]string{"completion", "bsh"}, exitRefused, "did you mean bash"},
		{[]string{"submit"}, exitRefused, "name a job file, or a job in a bucket with --from"},
		{[]string{"export", "a", "b", "c"}, exitRefused, `export: want JOB [DIR], found ["a" "b" "c"]`},
		{[]string{"help", "nonsense"}, exitRefused, `no verb "nonsense"; see avgpipectl --help`},
		{[]string{"help", "nodes", "drian"}, exitRefused, `no verb "drian"; did you mean drain?`},
		{[]string{"nodes", "x"}, exitRefused, `no verb "x"; see avgpipectl nodes --help`},
		{[]string{"rm"}, exitRefused, "rm: want JOB..., found nothing"},
		{[]string{"tokenize", "--out", "x"}, exitRefused, "tokenize: want FILE..., found nothing"},
		{[]string{"generate", "m", "--prompt", "a", "--temperature", "nan"}, exitRefused, "generate: --temperature is NaN; want a number of at least 0"},
		{[]string{"logs", "a", "--level", "warning"}, exitRefused, "did you mean warn?"},
		{[]string{"plan", "compare", "-f", "../../examples/plan/costs.yaml", "--pipelines", "0"}, exitRefused, "--pipelines is 0; want at least 1"},
		{[]string{"status"}, exitNoDaemon, "no daemon at /nonexistent/daemon.sock"},
		{[]string{"status"}, exitNoDaemon, "systemctl start avgpiped"},
		{[]string{"watch", "1", "-o", "json"}, exitNoDaemon, `"code":"unavailable","error":"no daemon at`},
	} {
		if r := want(t, c.code, nil, c.args...); !strings.Contains(r.messages, c.says) {
			t.Errorf("avgpipectl %s: no %q in: %s", strings.Join(c.args, " "), c.says, r.messages)
		}
	}
}

// TestASubmissionWithAKeyIsOneJob, whoever submits it again.
func TestASubmissionWithAKeyIsOneJob(t *testing.T) {
	d := nodetest.Start(t, nodetest.StateDir(t))
	path := jobFile(t, d, "once", 1e6, "")
	for range 2 {
		if r := want(t, exitDone, d, "submit", path, "--key", "nightly"); !strings.Contains(r.out, "job 1 submitted") {
			t.Errorf("submitted again: %s%s", r.out, r.messages)
		}
	}
	if r := want(t, exitFailed, d, "submit", path, "--key", "nightly", "--set", "train.steps=5"); !strings.Contains(r.messages, `key "nightly": job 1 was submitted with it, from another file, directory or overrides`) {
		t.Errorf("another submission with the key: %s", r.messages)
	}
	if r := want(t, exitFailed, d, "submit", path, "--key", "every night"); !strings.Contains(r.messages, "printable characters of ASCII, and no space") {
		t.Errorf("a key that is none: %s", r.messages)
	}
	if r := want(t, exitDone, d, "submit", path); !strings.Contains(r.out, "job 2 submitted") {
		t.Errorf("without a key: %s%s", r.out, r.messages)
	}
}

// TestRefusedJobFiles submits the job files of testdata/refused. Each is refused, and nothing starts.
func TestRefusedJobFiles(t *testing.T) {
	d := nodetest.Start(t, nodetest.StateDir(t))
	dir := t.TempDir()
	base := nodetest.Job(t, dir, "refused", 50)
	if err := os.WriteFile(filepath.Join(dir, "rows.jsonl"), []byte("{\"text\": \"a\"}\n{\"txt\": \"b\"}\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	datadriven.RunTest(t, "testdata/refused", func(t *testing.T, td *datadriven.TestData) string {
		if td.Cmd == "file" {
			if err := os.WriteFile(filepath.Join(dir, td.CmdArgs[0].Key), []byte(td.Input), 0o644); err != nil {
				t.Fatal(err)
			}
			return ""
		}
		source := base
		for line := range strings.SplitSeq(strings.TrimSpace(td.Input), "\n") {
			old, fresh, ok := strings.Cut(line, " => ")
			if !ok {
				td.Fatalf(t, "a change is OLD => NEW, not %q", line)
			}
			if !strings.Contains(source, old) {
				td.Fatalf(t, "the job file has no %q", old)
			}
			source = strings.ReplaceAll(source, old, strings.ReplaceAll(fresh, `\n`, "\n"))
		}
		path := filepath.Join(dir, "job.yaml")
		if err := os.WriteFile(path, []byte(source), 0o644); err != nil {
			t.Fatal(err)
		}
		args := []string{"submit", path}
		for _, a := range td.CmdArgs {
			args = append(args, "--set", a.Vals[0])
		}
		r := want(t, exitRefused, d, args...)
		if r.out != "" {
			t.Errorf("%s: output beside the problems: %s", td.Pos, r.out)
		}
		return strings.ReplaceAll(r.messages, dir, "DIR")
	})
	if r := want(t, exitDone, d, "status"); r.out != "no jobs\n" {
		t.Errorf("a refused job is there:\n%s", r.out)
	}
}

func TestRefusedAsJSON(t *testing.T) {
	d := nodetest.Start(t, nodetest.StateDir(t))
	r := want(t, exitRefused, d, "submit", jobFile(t, d, "bad", 10, "stagse: 2\n"), "-o", "json")
	var e api.Error
	if err := json.Unmarshal([]byte(r.messages), &e); err != nil || len(e.Problems) != 1 || e.Problems[0].Nearest != "stages" {
		t.Errorf("%v: %s", err, r.messages)
	}
}

func TestSubmitWatchExports(t *testing.T) {
	d := nodetest.Start(t, nodetest.StateDir(t))
	target := filepath.Join(d.Dir, "out")
	path := jobFile(t, d, "good", 60, "output: {dir: out}\n")
	r := want(t, exitDone, d, "submit", path, "--watch", "--set", "train.steps=80")
	for _, s := range []string{"job 1 submitted\n", "step 40/40", "eval loss 5.5000 before", fmt.Sprintf("%.4f after", agenttest.Loss(40)), target} {
		if !strings.Contains(r.out, s) {
			t.Errorf("no %q in:\n%s", s, r.out)
		}
	}
	checkModel(t, target)

	// What is there is not replaced unasked, and that is said before the job starts.
	r = want(t, exitRefused, d, "submit", path, "--watch")
	if !strings.Contains(r.messages, "output.dir") || !strings.Contains(r.messages, "--force") {
		t.Errorf("an occupied output.dir: %s", r.messages)
	}
	want(t, exitDone, d, "submit", path, "--watch", "--force", "--set", "train.steps=40")
	checkModel(t, target)

	want(t, exitRefused, d, "export", "1", target)
	want(t, exitDone, d, "export", "1", "--force") // to output.dir
	checkModel(t, target)
	// What somebody put there is not replaced even with --force.
	notes := filepath.Join(target, "notes.md")
	if err := os.WriteFile(notes, []byte("mine"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"export", "1", "--force"}, {"submit", path, "--watch", "--force"}} {
		if r := want(t, exitRefused, d, args...); !strings.Contains(r.messages, "notes.md") {
			t.Errorf("%v: %s", args, r.messages)
		}
	}
	if err := os.Remove(notes); err != nil {
		t.Errorf("a file that no export wrote: %v", err)
	}
	checkModel(t, target)
	if left, err := filepath.Glob(filepath.Join(d.Dir, ".avgpipe-export-*")); err != nil || len(left) > 0 {
		t.Errorf("exports left %v behind, %v", left, err)
	}
}

func checkModel(t *testing.T, dir string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	if !slices.Equal(names, []string{modeldir.ManifestFile, "config.json", "model.safetensors"}) {
		t.Errorf("%s holds %v", dir, names)
	}
}

func TestVerbsOnARunningJob(t *testing.T) {
	d := nodetest.Start(t, nodetest.StateDir(t))
	want(t, exitDone, d, "submit", jobFile(t, d, "long", 1e6, ""))
	d.Until(t, "1", "commits", func(s api.JobStatus) bool { return s.CommittedRound > 0 && s.State == api.Running })

	var s api.JobStatus
	r := want(t, exitDone, d, "status", "long", "-o", "json")
	if err := json.Unmarshal([]byte(r.out), &s); err != nil || s.ID != "1" || s.State != api.Running || len(s.StageStatus) != 2 {
		t.Errorf("status: %v\n%s", err, r.out)
	}
	for _, key := range []string{
		"id", "name", "state", "reason", "step", "steps", "round", "committed_round", "loss", "eval_loss", "tokens_per_s",
		"perplexity", "accuracy", "f1", "family", "task", "precision", "recompute",
		"samples_seen", "eta_s", "pipelines", "stages", "micro_batches", "schedule", "averaging",
		"busy", "wait_upstream", "wait_downstream", "average", "optimizer",
	} {
		if !strings.Contains(r.out, `"`+key+`":`) {
			t.Errorf("status -o json has no %s", key)
		}
	}
	for _, c := range []struct {
		says string
		args []string
	}{
		{"running", []string{"status"}},
		{"1 (long)", []string{"status", "1"}},
		{"gpt2 (language)", []string{"status", "1"}},
		{"submitted", []string{"logs", "1"}},
		{"leader", []string{"nodes"}},
		{"node test", []string{"version"}},
	} {
		if r := want(t, exitDone, d, c.args...); !strings.Contains(r.out, c.says) {
			t.Errorf("%v: no %q in:\n%s", c.args, c.says, r.out)
		}
		r := want(t, exitDone, d, append(c.args, "-o", "json")...)
		var v any
		if err := json.NewDecoder(strings.NewReader(r.out)).Decode(&v); err != nil {
			t.Errorf("%v -o json: %v:\n%s", c.args, err, r.out)
		}
	}
	want(t, exitFailed, d, "status", "nobody")
	want(t, exitDone, d, "cancel", "long")
	if r := want(t, exitFailed, d, "watch", "long"); !strings.Contains(r.messages, "job 1 cancelled: ") {
		t.Errorf("watch of a cancelled job: %s%s", r.out, r.messages)
	}
	if r := want(t, exitDone, d, "logs", "-f", "long"); !strings.Contains(r.out, "job cancelled") {
		t.Errorf("the followed log has no end:\n%s", r.out)
	}
	want(t, exitFailed, d, "cancel", "long")
}

// TestJobsThatAreNamedTwiceAreTakenOnce, and one that is not there is told from those that are.
func TestJobsThatAreNamedTwiceAreTakenOnce(t *testing.T) {
	d := nodetest.Start(t, nodetest.StateDir(t))
	for _, name := range []string{"first", "second"} {
		want(t, exitDone, d, "submit", jobFile(t, d, name, 1e6, ""))
	}
	if r := want(t, exitFailed, d, "status", "frist"); r.messages != "no job \"frist\"; did you mean first? the last jobs are 1 (first), 2 (second)\n" {
		t.Error(r.messages)
	}
	if r := want(t, exitDone, d, "rm", "--force", "first", "second", "first"); strings.Count(r.out, "is removed") != 2 {
		t.Error(r.out)
	}
	if r := want(t, exitFailed, d, "status", "first"); r.messages != "no job \"first\"; there are none\n" {
		t.Error(r.messages)
	}
}

func TestRmForceSaysWhatItWaitsFor(t *testing.T) {
	d := nodetest.Start(t, nodetest.StateDir(t))
	want(t, exitDone, d, "submit", jobFile(t, d, "long", 1e6, ""))
	d.Until(t, "1", "trains", func(s api.JobStatus) bool { return s.State == api.Running && s.Round > 0 })
	r := want(t, exitDone, d, "rm", "--force", "long")
	for _, says := range []string{"cancelling it first", "job 1: cancelling, as "} {
		if !strings.Contains(r.messages, says) {
			t.Errorf("no %q in: %s", says, r.messages)
		}
	}
}

func TestResumeAndExportSayWhatComesNext(t *testing.T) {
	d := nodetest.Start(t, nodetest.StateDir(t))
	want(t, exitDone, d, "submit", jobFile(t, d, "full-at-200", 1000, ""))
	d.Until(t, "1", "waits", func(s api.JobStatus) bool { return s.State == api.Waiting })
	if r := want(t, exitDone, d, "resume", "1"); strings.Contains(r.out, "is waiting") {
		t.Errorf("resume of a job that waits: %s", r.out)
	}
	want(t, exitDone, d, "cancel", "1")
	want(t, exitDone, d, "submit", jobFile(t, d, "good", 20, ""), "--watch")
	if err := os.RemoveAll(filepath.Join(d.Dir, "jobs", "2", "shards")); err != nil {
		t.Fatal(err)
	}
	r := want(t, exitFailed, d, "export", "2", filepath.Join(d.Dir, "model"))
	if !strings.HasPrefix(r.messages, "export job 2: no committed round can be read: ") || !strings.Contains(r.messages, "; put the files back, or submit the job again") {
		t.Errorf("export without shards: %s", r.messages)
	}
}

func TestWatchEndsWithTheJobsFailure(t *testing.T) {
	d := nodetest.Start(t, nodetest.StateDir(t))
	r := want(t, exitFailed, d, "submit", "--watch", jobFile(t, d, "nan-at-50", 1000, ""))
	if !strings.Contains(r.messages, "loss is NaN") {
		t.Errorf("the reason is not told: %s", r.messages)
	}
	r = want(t, exitFailed, d, "watch", "1", "-o", "json")
	var s api.JobStatus
	if err := json.Unmarshal([]byte(r.out), &s); err != nil || s.State != api.Failed {
		t.Errorf("%v: %s", err, r.out)
	}
}

func TestInterruptedWatchLeavesTheJob(t *testing.T) {
	d := nodetest.Start(t, nodetest.StateDir(t))
	path := jobFile(t, d, "long", 1e6, "")
	t.Setenv("AVGPIPE_SOCKET", nodetest.Socket(d.Dir))
	ctx, interrupt := context.WithCancel(t.Context())
	var out, messages bytes.Buffer
	done := make(chan int)
	go func() { done <- run(ctx, []string{"submit", path, "--watch"}, strings.NewReader(""), &out, &messages) }()
	nodetest.Eventually(t, "the job trains", func() bool {
		s, err := d.Client.Job(t.Context(), "1")
		return err == nil && s.State == api.Running
	})
	interrupt()
	if code := <-done; code != exitInterrupted && !errors.Is(ctx.Err(), context.Canceled) {
		t.Errorf("exit code %d, want %d", code, exitInterrupted)
	}
	if !strings.Contains(messages.String(), "job 1 goes on") {
		t.Errorf("the user is not told that the job goes on: %s", messages.String())
	}
	if s, err := d.Client.Job(t.Context(), "1"); err != nil || s.State.Ended() {
		t.Errorf("the job is %s, %v", s.State, err)
	}
}

func TestWatchSurvivesARestartOfTheDaemon(t *testing.T) {
	d := nodetest.Spawn(t, nodetest.StateDir(t))
	path := jobFile(t, d, "long", 600, "")
	t.Setenv("AVGPIPE_SOCKET", nodetest.Socket(d.Dir))
	var out, messages bytes.Buffer
	done := make(chan int)
	go func() {
		done <- run(t.Context(), []string{"submit", path, "--watch"}, strings.NewReader(""), &out, &messages)
	}()
	d.Until(t, d.WaitForJob(t), "trains", func(s api.JobStatus) bool { return s.State == api.Running && s.Round > 20 })
	d.Kill(t)
	nodetest.Spawn(t, d.Dir)
	if code := <-done; code != exitDone {
		t.Errorf("exit code %d\n%s%s", code, out.String(), messages.String())
	}
	if !strings.Contains(out.String(), "the daemon went away") || !strings.Contains(out.String(), "step 600/600") {
		t.Errorf("the watch was:\n%s", out.String())
	}
}

func TestWatchTellsOfAKilledWorker(t *testing.T) {
	d := nodetest.Start(t, nodetest.StateDir(t))
	path := jobFile(t, d, "long", 2500, "")
	t.Setenv("AVGPIPE_SOCKET", nodetest.Socket(d.Dir))
	var out, messages bytes.Buffer
	done := make(chan int)
	go func() {
		done <- run(t.Context(), []string{"submit", path, "--watch"}, strings.NewReader(""), &out, &messages)
	}()
	id := d.WaitForJob(t)
	d.Until(t, id, "commits", func(s api.JobStatus) bool { return s.State == api.Running && s.CommittedRound > 0 })
	if err := syscall.Kill(d.WorkerPID(t, id), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if code := <-done; code != exitDone || !strings.Contains(out.String(), "signal: killed") {
		t.Errorf("exit code %d\n%s%s", code, out.String(), messages.String())
	}
}

// TestTheDaemonExports: without --watch the daemon writes the model when the job is done, and export --wait waits for that.
func TestTheDaemonExports(t *testing.T) {
	d := nodetest.Start(t, nodetest.StateDir(t))
	target := filepath.Join(d.Dir, "out")
	path := jobFile(t, d, "good", 60, "output: {dir: out}\n")
	if r := want(t, exitDone, d, "submit", path); !strings.Contains(r.out, "when the job is done, the daemon writes its model to "+target) {
		t.Errorf("submit does not say what becomes of output.dir:\n%s", r.out)
	}
	if r := want(t, exitDone, d, "export", "1", "--wait"); !strings.Contains(r.out, "the model of job 1 (good) is in "+target) {
		t.Errorf("export --wait:\n%s", r.out)
	}
	checkModel(t, target)
	if r := want(t, exitDone, d, "status", "1"); !strings.Contains(r.out, "the daemon wrote the model to "+target) {
		t.Errorf("status does not tell:\n%s", r.out)
	}

	// What is there is not replaced unasked: the job is refused before it starts.
	r := want(t, exitRefused, d, "submit", path)
	if !strings.Contains(r.messages, "output.dir: "+target) || !strings.Contains(r.messages, "--force") {
		t.Errorf("an occupied output.dir:\n%s", r.messages)
	}
	want(t, exitDone, d, "submit", path, "--force")
	want(t, exitDone, d, "export", "2", "--wait")
	if text, err := os.ReadFile(filepath.Join(target, modeldir.ManifestFile)); err != nil || !strings.Contains(string(text), `"job": "2"`) {
		t.Errorf("the model of job 2 is not in %s: %v\n%s", target, err, text)
	}
	elsewhere := filepath.Join(d.Dir, "elsewhere")
	want(t, exitDone, d, "export", "2", elsewhere, "--wait", "-o", "json")
	checkModel(t, elsewhere)
	want(t, exitRefused, d, "export", "2", elsewhere, "--wait") // before it waits
}

func TestWaitEndsAsTheJobDoes(t *testing.T) {
	d := nodetest.Start(t, nodetest.StateDir(t))
	want(t, exitDone, d, "submit", jobFile(t, d, "nan-at-50", 1000, "output: {dir: out}\n"))
	if r := want(t, exitFailed, d, "export", "1", "--wait"); !strings.Contains(r.messages, "loss is NaN") {
		t.Errorf("the reason is not told: %s", r.messages)
	}
	if _, err := os.Stat(filepath.Join(d.Dir, "out")); !os.IsNotExist(err) {
		t.Errorf("a failed job was exported: %v", err)
	}
}
