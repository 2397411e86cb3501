package main

import (
	"errors"
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
			var coded interface{ ExitCode() int }
			if !errors.As(err, &coded) || coded.ExitCode() != 2 {
				t.Errorf("%s: error %v does not exit with 2", d.Pos, err)
			}
			out += "error: " + err.Error()
		}
		return strings.ReplaceAll(out, dir, "DIR")
	})
}

// TestPlanCheckReadsWhatPlanShowPrints from the standard input.
func TestPlanCheckReadsWhatPlanShowPrints(t *testing.T) {
	var out strings.Builder
	if err := runPlanCheck(strings.NewReader("F0 F1 B0 B1\nF0 B0 F1 B1\n"), &out, []string{"-"}, "text"); err != nil {
		t.Fatal(err)
	}
	if want := "-: ok: 2 devices, 2 stages, 2 micro-batches; one optimizer step, after the batch\n"; !strings.HasPrefix(out.String(), want) {
		t.Errorf("printed\n%s\nwant %q first", out.String(), want)
	}
	if err := runPlanCheck(strings.NewReader(strings.Repeat(" ", maxPlanFileBytes+1)), &out, []string{"-"}, "text"); err == nil || !strings.Contains(err.Error(), "more than") {
		t.Errorf("a file without an end: error %v", err)
	}
}

// TestPlanCheckEndsForManyDevices: counting messages on their way takes a pass over the plan for each, unless devices and stages are in one order.
func TestPlanCheckEndsForManyDevices(t *testing.T) {
	const devices = 9000
	for first, counted := range map[string]bool{"F0 B0\nF0 B0\n": true, "1F0 1B0\n0F0 0B0\n": false} {
		var out strings.Builder
		if err := runPlanCheck(strings.NewReader(first+strings.Repeat("F0 B0\n", devices-2)), &out, []string{"-"}, "text"); err != nil {
			t.Fatal(err)
		}
		if is := !strings.Contains(out.String(), "messages on their way are not counted"); is != counted {
			t.Errorf("first lines %q: messages are counted: %v; want %v", first, is, counted)
		}
	}
}
