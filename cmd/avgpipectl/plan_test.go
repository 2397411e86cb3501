package main

import (
	"bytes"
	"errors"
	"flag"
	"os"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"github.com/spf13/cobra"
)

// runPlan runs `avgpipectl plan ARGS` and returns what it prints.
func runPlan(args ...string) (string, error) {
	root := &cobra.Command{Use: "avgpipectl", SilenceUsage: true, SilenceErrors: true}
	root.AddCommand(newPlanCommand())
	var out bytes.Buffer
	root.SetOut(&out)
	root.SetErr(&out)
	root.SetArgs(append([]string{"plan"}, args...))
	err := root.Execute()
	return out.String(), err
}

// TestPlan runs the command lines of testdata/plan; -rewrite records what they now print.
func TestPlan(t *testing.T) {
	datadriven.RunTest(t, "testdata/plan/show", func(t *testing.T, d *datadriven.TestData) string {
		if d.Cmd != "plan" {
			t.Fatalf("%s: unknown command %s", d.Pos, d.Cmd)
		}
		out, err := runPlan(strings.Fields(d.Input)...)
		if err == nil {
			return out
		}
		var coded interface{ ExitCode() int }
		if !errors.As(err, &coded) || coded.ExitCode() != 2 {
			t.Errorf("%s: error %v does not exit with 2", d.Pos, err)
		}
		return out + "error: " + err.Error()
	})
}

// TestSchedulesDocShowsWhatTheToolPrints runs each console block of docs/schedules.md and redraws its image.
func TestSchedulesDocShowsWhatTheToolPrints(t *testing.T) {
	const docs = "../../docs/"
	text, err := os.ReadFile(docs + "schedules.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := strings.Split(string(text), "```console\n")[1:]
	if len(blocks) == 0 {
		t.Fatal("docs/schedules.md has no console block")
	}
	for _, block := range blocks {
		block, _, _ = strings.Cut(block, "```")
		line, want, _ := strings.Cut(block, "\n")
		command, file, toFile := strings.Cut(strings.TrimPrefix(line, "$ avgpipectl plan "), " > docs/")
		got, err := runPlan(strings.Fields(command)...)
		if err != nil {
			t.Errorf("%s: %v", line, err)
			continue
		}
		if toFile {
			want = goldenFile(t, docs+file, got)
		}
		if got != want {
			t.Errorf("%s prints\n%s\nthe document has\n%s", line, got, want)
		}
	}
}

// goldenFile returns what the file holds, after -rewrite has stored got in it.
func goldenFile(t *testing.T, path, got string) string {
	t.Helper()
	if rewrite := flag.Lookup("rewrite"); rewrite != nil && rewrite.Value.String() == "true" {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}
