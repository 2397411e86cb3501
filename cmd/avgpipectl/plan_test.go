package main

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/xml"
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/avgpipe/avgpipe/schedule"
)

// runPlan runs `avgpipectl plan ARGS` and returns what it prints.
func runPlan(args ...string) (string, error) {
	root := newRootCommand()
	var out bytes.Buffer
	root.SetOut(&out)
	root.SetErr(&out)
	root.SetArgs(append([]string{"plan"}, args...))
	_, err := execute(context.Background(), root)
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
		if exitCode(err) != exitRefused {
			t.Errorf("%s: error %v does not exit with 2", d.Pos, err)
		}
		return out + "error: " + err.Error()
	})
}

// TestPlanCompare runs the costs files of testdata/plan/compare with the flags on the command's line.
func TestPlanCompare(t *testing.T) {
	path, err := filepath.Abs("testdata/plan/compare")
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir(t.TempDir())
	datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
		if err := os.WriteFile("costs.yaml", []byte(d.Input), 0o600); err != nil {
			t.Fatal(err)
		}
		args := []string{"compare", "-f", "costs.yaml"}
		for _, arg := range d.CmdArgs {
			args = append(args, "--"+arg.Key+"="+strings.Join(arg.Vals, ","))
		}
		out, err := runPlan(args...)
		if err == nil {
			return out
		}
		if exitCode(err) != exitRefused {
			t.Errorf("%s: error %v does not exit with 2", d.Pos, err)
		}
		return out + "error: " + err.Error()
	})
}

// TestExampleCostsAreUnderstood, for all schedules and every form of output.
func TestExampleCostsAreUnderstood(t *testing.T) {
	for _, output := range []string{"text", "json", "svg", "perfetto"} {
		out, err := runPlan("compare", "-f", "../../examples/plan/costs.yaml", "-o", output, "--pipelines=2")
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range schedule.Names() {
			if !strings.Contains(out, name) {
				t.Errorf("-o %s does not show %s", output, name)
			}
		}
		if output == "json" || output == "perfetto" {
			if !json.Valid([]byte(out)) {
				t.Errorf("-o %s is no JSON", output)
			}
		}
		if output == "svg" {
			if err := xml.Unmarshal([]byte(out), new(struct{})); err != nil {
				t.Errorf("-o svg: %v", err)
			}
		}
	}
}

// TestExampleCostsHaveEveryKey, some of them behind a #, to be taken away.
func TestExampleCostsHaveEveryKey(t *testing.T) {
	source, err := os.ReadFile("../../examples/plan/costs.yaml")
	if err != nil {
		t.Fatal(err)
	}
	text := regexp.MustCompile(`(?m)^#(\w)`).ReplaceAllString(string(source), "$1")
	if _, err := parseCosts("costs.yaml", []byte(text)); err != nil {
		t.Error(err)
	}
	for _, key := range costsSchema.Fields {
		if !strings.Contains(text, "\n"+key.Key+": ") {
			t.Errorf("%s is missing", key.Key)
		}
	}
}

// TestSchedulesDocShowsWhatTheToolPrints runs each console block of docs/schedules.md and redraws its image.
func TestSchedulesDocShowsWhatTheToolPrints(t *testing.T) {
	t.Chdir("../..") // where the commands of the document are run
	const docs = "docs/"
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
