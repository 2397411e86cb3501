package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
)

// TestPlanCheck proves the plans of testdata/plan/check; -rewrite records what is printed.
//
//	check [output=json]      the input is the file
//	show [link=TIME]..       the input is the file
//	arguments                the input are the arguments, a line
func TestPlanCheck(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "plan.txt")
	datadriven.RunTest(t, "testdata/plan/check", func(t *testing.T, d *datadriven.TestData) string {
		args := []string{"check", path}
		switch d.Cmd {
		case "show":
			args = []string{"show", "--file", path}
		case "arguments":
			args = strings.Fields(d.Input)
		}
		if err := os.WriteFile(path, []byte(d.Input), 0o644); err != nil {
			t.Fatal(err)
		}
		for _, a := range d.CmdArgs {
			args = append(args, "--"+a.String())
		}
		out, err := runPlan(args...)
		if err != nil {
			if exitCode(err) != exitRefused {
				t.Errorf("%s: error %v does not exit with 2", d.Pos, err)
			}
			out += "error: " + err.Error()
		}
		return strings.ReplaceAll(out, dir, "DIR")
	})
}

// planCheck proves a plan from the standard input.
func planCheck(t *testing.T, plan string) result {
	t.Helper()
	var out, messages strings.Builder
	code := run(t.Context(), []string{"plan", "check", "-"}, strings.NewReader(plan), &out, &messages)
	return result{code, out.String(), messages.String()}
}

// TestPlanCheckReadsWhatPlanShowPrints from the standard input.
func TestPlanCheckReadsWhatPlanShowPrints(t *testing.T) {
	want := "-: ok: 2 devices, 2 stages, 2 micro-batches; one optimizer step, after the batch\n"
	if r := planCheck(t, "F0 F1 B0 B1\nF0 B0 F1 B1\n"); r.code != exitDone || !strings.HasPrefix(r.out, want) {
		t.Errorf("printed\n%s%s\nwant %q first", r.out, r.messages, want)
	}
	if r := planCheck(t, strings.Repeat(" ", maxPlanFileBytes+1)); r.code != exitRefused || !strings.Contains(r.messages, "more than") {
		t.Errorf("a file without an end: %s", r.messages)
	}
	if r := planCheck(t, ""); r.code != exitRefused || !strings.Contains(r.messages, "is empty") {
		t.Errorf("nothing: %s", r.messages)
	}
}
