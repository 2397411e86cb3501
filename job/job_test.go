package job

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/avgpipe/avgpipe/internal/strictyaml"
)

// TestPositionsAreForWhoeverFindsAProblemLater: a problem found after parsing points to its key, to the key around it when
// that is not there, and to a key below model.config that only the family knows.
func TestPositionsAreForWhoeverFindsAProblemLater(t *testing.T) {
	_, p, err := Parse("job.yaml", []byte(shortest), []string{"stages=9", "data.sequence=7"}, environment)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ key, message, nearest, want string }{
		{"data.files[0]", "it is not there", "corpus.md", "job.yaml:6:11: it is not there"},
		{"data.files[7].x", "around", "", "job.yaml:6:10: around"},
		{"train.max_time", "short", "", "job.yaml:9:1: short"},
		{"averaging.alpha", "nowhere", "", "job.yaml:1:1: nowhere"},
		{"model.config.n_embd", "indivisible", "", "job.yaml:4:32: indivisible"},
		{"stages", "more than the layers", "4", "--set:1:14: more than the layers"},
		{"data.sequence", "too long", "", "--set:1:21: too long"},
	} {
		p.Refuse(c.key, c.nearest, "%s", c.message)
		if err := p.Err(); err == nil || !strings.Contains(err.Error(), c.want+"\n") {
			t.Errorf("got %v\nwant %s", err, c.want)
		}
	}
	p.UnknownKey("model.config", "n_layer", "", []string{"layers", "n_head"})
	p.UnknownKey("", "nonsense", "", []string{"x"})
	for _, want := range []string{
		`job.yaml:4:12: unknown key "n_layer"; model.config allows layers, n_head`,
		`job.yaml:1:1: unknown key "nonsense"; a job file allows x`,
	} {
		if err := p.Err(); !strings.Contains(err.Error(), want+"\n") {
			t.Errorf("got %v\nwant %s", err, want)
		}
	}
	if !p.Has("data.files[0]") || p.Has("data.files[1]") {
		t.Error("Has is wrong")
	}
}

// TestHostileText: what a file holds does not reach a terminal as a command, and is bounded.
func TestHostileText(t *testing.T) {
	for name, c := range map[string]struct{ source, want string }{
		"escape in a value": {shortest + "name: \"a\" # \x1b[2J\n\x1b[31m: 1\n", "�[31m"},
		"escape in a key":   {"\"\\e[2J\": 1\n", `unknown key "\x1b[2J"`},
		"not UTF-8":         {"version: 1\nname: é\xff\n", "job.yaml:2:8: byte 0xff is not UTF-8 text\n  2 | name: é�\n    |        ^"},
		"UTF-16":            {"\xff\xfev\x00", "job.yaml:1:1: the text is UTF-16; save it as UTF-8"},
		"too long":          {"# " + strings.Repeat("x", CapBytes), "job.yaml:1:1: 65538 bytes; a job file has at most 65536"},
		"deep brackets":     {strings.Repeat("[", CapBytes-1), "job.yaml:1:33: more than 32"},
		"deep dashes":       {strings.Repeat("- ", CapBytes/2-1), "job.yaml:1:65: more than 32"},
		"deep mappings":     {strings.Repeat("{a: ", CapBytes/4-1), "job.yaml:1:129: more than 32 values in each other"},
		"deep sections":     {nested(300), "job.yaml:33:33: more than 32 values in each other"},
	} {
		_, _, err := Parse("job.yaml", []byte(c.source), nil, environment)
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\x1b") || !utf8.ValidString(err.Error()) {
			t.Errorf("%s: error %.300v\nwant %s", name, err, c.want)
			continue
		}
		inside(t, c.source, err)
	}
}

// nested returns so many sections in each other.
func nested(n int) string {
	var b strings.Builder
	for i := range n {
		b.WriteString(strings.Repeat(" ", i) + "a:\n")
	}
	return b.String()
}

// TestWindowsLineEnds: a file written on another system reads the same, and shows no stray character.
func TestWindowsLineEnds(t *testing.T) {
	source := strings.ReplaceAll(shortest+"stagges: 2\n", "\n", "\r\n")
	_, _, err := Parse("job.yaml", []byte(source), nil, environment)
	if err == nil || !strings.Contains(err.Error(), "\n  12 | stagges: 2\n     | ^\n  nearest: stages") {
		t.Errorf("error %v", err)
	}
	j, _, err := Parse("job.yaml", bytes.ReplaceAll([]byte(shortest), []byte("\n"), []byte("\r\n")), nil, environment)
	if err != nil || !slices.Equal(j.Data.Files, []string{"corpus.txt"}) {
		t.Errorf("job %+v, error %v", j, err)
	}
}

// TestByteOrderMark: some editors start a file with one. It is no part of the text.
func TestByteOrderMark(t *testing.T) {
	j, _, err := Parse("job.yaml", []byte("\ufeff"+shortest), nil, environment)
	if err != nil || !slices.Equal(j.Data.Files, []string{"corpus.txt"}) {
		t.Errorf("job %+v, error %v", j, err)
	}
	_, _, err = Parse("job.yaml", []byte("\ufeffversion: 2\n"), nil, environment)
	if err == nil || !strings.Contains(err.Error(), "job.yaml:1:10: version wants the number 1") {
		t.Errorf("error %v", err)
	}
}

func TestNameComesFromTheFile(t *testing.T) {
	for file, want := range map[string]string{
		"runs/go-source.yaml": "go-source", "-": "job", "": "job", "my run (2).yml": "my-run-2-", "größe.yaml": "gr-e",
		strings.Repeat("x", 100) + ".yaml": strings.Repeat("x", 63), "../.hidden.yaml": "hidden",
	} {
		j, _, err := Parse(file, []byte(shortest), nil, environment)
		if err != nil || j.Name != want {
			t.Errorf("%s: name %q, error %v, want %q", file, j.Name, err, want)
		}
	}
}

func TestAbsolute(t *testing.T) {
	j := &Job{
		Model: Model{From: "m"}, Data: Data{Files: []string{"a/*.txt", "/b", "../c"}, Validation: []string{"v"}, Tokenizer: "t"}, Output: Output{Dir: ""},
	}
	j.Schedule = "file:plans/one.txt"
	j.Absolute("/base/dir")
	if j.Schedule != "file:/base/dir/plans/one.txt" || j.PlanFile() != "/base/dir/plans/one.txt" {
		t.Errorf("schedule %s, a file %q", j.Schedule, j.PlanFile())
	}
	if got := fmt.Sprint(j.Model.From, j.Data.Files, j.Data.Validation, j.Data.Tokenizer, j.Output.Dir); got != "/base/dir/m[/base/dir/a/*.txt /b /base/c] [/base/dir/v]/base/dir/t" {
		t.Errorf("got %s", got)
	}
}

// TestPlanOfAFile: the path is expanded like others, its absence is refused, and nothing about it is left to a measurement.
func TestPlanOfAFile(t *testing.T) {
	env := environment
	env.Lookup = func(name string) (string, bool) { return "/plans", name == "DIR" }
	j, _, err := Parse("job.yaml", []byte(shortest), []string{"schedule=file:${DIR}/a.csv", "chunks=3"}, env)
	if err != nil {
		t.Fatal(err)
	}
	if j.PlanFile() != "/plans/a.csv" || j.Open() || j.Chunks != 3 {
		t.Errorf("schedule %s, open %v, chunks %d", j.Schedule, j.Open(), j.Chunks)
	}
	for set, want := range map[string]string{
		"schedule='file:'":        "schedule is file: without a path",
		"schedule=file:${NO}/x":   "schedule: variable ${NO} is not set",
		"schedule=plan.txt":       `schedule wants one of`,
		"chunks=-1":               "chunks wants",
		"chunks=65":               "chunks wants",
		"schedule=file:~someone/": "another user's home directory",
	} {
		if _, _, err := Parse("job.yaml", []byte(shortest), []string{set}, env); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %q in it", set, err, want)
		}
	}
}

// TestRecomputeIsForEachStage: there are stages times chunks of them.
func TestRecomputeIsForEachStage(t *testing.T) {
	for _, c := range []struct {
		chunks  string
		entries int
		want    string
	}{
		{"2", 4, ""},
		{"2", 2, "recompute has entries for 2 stages, and there are 4 (stages times chunks)"},
		{"auto", 4, ""}, // if the schedule has chunks
		{"auto", 3, "recompute has entries for 3 stages, and there are 2 (stages)"},
		{"1", 4, "recompute has entries for 4 stages, and there are 2 (stages)"},
	} {
		set := []string{"stages=2", "chunks=" + c.chunks, "recompute=[" + strings.Join(slices.Repeat([]string{"none"}, c.entries), ", ") + "]"}
		_, _, err := Parse("job.yaml", []byte(shortest), set, environment)
		if c.want == "" != (err == nil) || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: %v, want %q", set, err, c.want)
		}
	}
}

// TestWordsOfOtherProgramsAreKnown, and numbers that are too large or not whole have a nearest one.
func TestWordsOfOtherProgramsAreKnown(t *testing.T) {
	for set, want := range map[string]string{
		"optimizer.learning_rate=1e-3": "nearest: optimizer.lr", "learning_rate=1": "nearest: optimizer.lr", "train.batch_size=4": "nearest: train.batch",
		"batch_size=4": "nearest: train.batch", "optimizer.beta1=0.9": "nearest: betas", "pipeline_parallel_size=2": "nearest: stages",
		"precision=fp16": "nearest: bf16", "precision=float32": "nearest: f32", "precision=BF16": "nearest: bf16",
		"train.steps=1e300": "nearest: 1000000000", "train.steps=99999999999999999999999": "nearest: 1000000000", "train.batch=-1e30": "nearest: 1\n",
		"train.batch=2.6": "nearest: 3", "train.batch=0.2": "nearest: 1", "stages=1.5": "nearest: 2", "stages=.inf": "nearest: 1024",
		"seed=-1": "nearest: 0", "seed=1e40": "nearest: 18446744073709551615", "seed=1.5": "nearest: 2", "data.holdout=1e400": "nearest: 0.5",
		"data.validation=0.5": "nearest: data.holdout: 0.5", "data.validation=a.txt": "nearest: [a.txt]", "data.mean=0.5": "nearest: [0.5]",
		"averaging={pull: old, horizon: 2}": "averaging.horizon is read with pull predicted only, and averaging.pull is old",
		"averaging.horizon=-1":              "nearest: 0, which stands for 1.5", "averaging.alpha=-1": "nearest: 0, which stands for 1,",
		"optimizer.lr=-1e-3": "nearest: 1e-3", "optimizer.lr=1e300": "above 0 and of at most 10000; found 1e300\n  1 | --set optimizer.lr=1e300\n    |                    ^\n  nearest: 10000", "optimizer.lr=1e-300": "want 1e-20 to 10000",
		"optimizer.clip_norm=1e-30": "want 0, which clips nothing, or at least 1e-20\n  1 | --set optimizer.clip_norm=1e-30\n    |                           ^\n  nearest: 0",
		"optimizer.epsilon=1e300":   "nearest: 1", "optimizer.weight_decay=1e39": "nearest: 10000",
		"optimizer.lr=1e400":   "found 1e400, which is beyond a number of 64 bits",
		"train.max_time=5 min": "nearest: 5m\n", "train.max_time=-5s": "nearest: 5s\n", "train.max_time=2 hours": "nearest: 2h\n",
		"train.max_time=.inf": "nearest: 0\n", "train.max_time=-5": "nearest: 5s\n", "train.max_time=1e3": "nearest: 1000s\n",
		"train.max_time=1ns":  "wants a duration in h, m, s and ms, such as 90s, 5m or 1h30m, or 0; found text \"1ns\"",
		"train.max_time=50us": "nearest: 0.05ms\n", "train.max_time=3m2h": "nearest: 7380000ms\n",
	} {
		_, _, err := Parse("job.yaml", []byte(shortest), []string{set}, environment)
		if err == nil || !strings.Contains(err.Error()+"\n", want) {
			t.Errorf("%s: %v, want %q", set, err, want)
		}
	}
	for _, source := range []string{"", "# nothing\n", "\n---\n"} {
		_, _, err := Parse("job.yaml", []byte(source), nil, environment)
		if err == nil || !strings.HasPrefix(err.Error(), "job.yaml:1:1: the file is empty; a job file is a mapping of keys to values: version, ") || strings.Contains(err.Error(), "missing") {
			t.Errorf("%q: %v", source, err)
		}
	}
}

func TestNearestDivisors(t *testing.T) {
	for _, c := range [][4]int{{16, 5, 4, 8}, {16, 4, 4, 4}, {16, 32, 16, 0}, {7, 3, 1, 7}, {1, 1, 1, 1}, {12, 0, 0, 1}} {
		if below, above := NearestDivisors(c[0], c[1]); below != c[2] || above != c[3] {
			t.Errorf("of %d around %d: %d and %d, want %d and %d", c[0], c[1], below, above, c[2], c[3])
		}
	}
}

// TestOpenJobs: what is left to the program is measured, unless it is all given or the rules decide.
func TestOpenJobs(t *testing.T) {
	given := []string{"stages=2", "pipelines=2", "micro_batches=2"}
	for _, c := range []struct {
		set  []string
		open bool
	}{
		{nil, true},
		{given, false},
		{append([]string{"schedule=auto"}, given...), true},
		{append([]string{"micro_batches=auto"}, given[:2]...), true},
		{[]string{"tuning=rules"}, false},
		{append([]string{"tuning=rules", "schedule=auto"}, given...), false},
		{append([]string{"recompute=auto"}, given...), true},
		{append([]string{"recompute=auto", "tuning=rules"}, given...), false},
		{append([]string{"recompute=full"}, given...), false},
	} {
		j, _, err := Parse("job.yaml", []byte(shortest), c.set, environment)
		if err != nil {
			t.Fatalf("%v: %v", c.set, err)
		}
		if j.Open() != c.open {
			t.Errorf("%v: open is %v, want %v", c.set, j.Open(), c.open)
		}
	}
}

// TestStaleLayersOfAnotherKindAreRefusedOnce: what is no number is not said to be 0 as well.
func TestStaleLayersOfAnotherKindAreRefusedOnce(t *testing.T) {
	own := environment
	own.Methods = map[string][]string{"elastic": nil, "sapipe": {"stale_layers"}}
	for value, want := range map[string]string{
		"some": "averaging.stale_layers wants a whole number", "-1": "averaging.stale_layers wants a whole number", "0": "averaging.stale_layers wants a whole number from 1 to 1000000000, or auto",
	} {
		_, _, err := Parse("job.yaml", []byte(shortest), []string{"averaging.method=sapipe", "averaging.stale_layers=" + value}, own)
		var problems strictyaml.Problems
		if !errors.As(err, &problems) || len(problems) != 1 || problems[0].Key != "averaging.stale_layers" || !strings.Contains(problems[0].Message, want) {
			t.Errorf("stale_layers %s: %v, want one problem of it: %q", value, err, want)
		}
	}
}

// TestAlphaAutoIsTheDefault, and other words are none.
func TestAlphaAutoIsTheDefault(t *testing.T) {
	j, _, err := Parse("job.yaml", []byte(shortest), []string{"averaging.alpha=auto"}, environment)
	if err != nil || j.Averaging.Alpha != Default().Averaging.Alpha {
		t.Errorf("auto: %v", err)
	}
	if _, _, err := Parse("job.yaml", []byte(shortest), []string{"averaging.alpha=some"}, environment); err == nil || !strings.Contains(err.Error(), "averaging.alpha wants a number from 0 to 1, or auto") {
		t.Errorf("some: %v", err)
	}
}

// TestTau: a number, or a word that is neither a number nor the default, which alone has a bound.
func TestTau(t *testing.T) {
	for set, want := range map[string]string{
		"averaging={tau: auto, tau_most: 8}": "",
		"averaging={tau: 4}":                 "",
		"averaging={tau: 4, tau_most: 8}":    "averaging.tau_most is read by tau: auto alone, and averaging.tau is 4; remove it, or write tau: auto",
		"averaging={tau_most: 8}":            "averaging.tau_most is read by tau: auto alone, and averaging.tau is 0",
		"averaging={tau: many}":              "averaging.tau wants a whole number from 0 to 1000000000, or auto",
		"averaging={tau: -1}":                "averaging.tau wants a whole number from 0 to 1000000000, or auto",
	} {
		j, _, err := Parse("job.yaml", []byte(shortest), []string{set}, environment)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", set, err, want)
		}
		if err == nil && (j.Averaging.Tau == AutoTau) != strings.Contains(set, "auto") {
			t.Errorf("%s: tau %d", set, j.Averaging.Tau)
		}
	}
}

// TestSettingsThatTheMethodDoesNotReadAreRefused: the message names all methods that do.
func TestSettingsThatTheMethodDoesNotReadAreRefused(t *testing.T) {
	own := environment
	own.Methods = map[string][]string{
		"elastic": {"pull", "alpha", "horizon"}, "pipesgd": {"warmup"}, "sapipe": {"warmup", "stale_layers", "prediction", "compensation", "lambda"},
	}
	for set, want := range map[string]string{
		"averaging={method: elastic, warmup: 3}":                                              "averaging.warmup is read with method pipesgd and sapipe only, and averaging.method is elastic",
		"averaging={method: pipesgd, prediction: local}":                                      "averaging.prediction is read with method sapipe only",
		"averaging={method: sapipe}":                                                          "",
		"averaging={method: sapipe, stale_layers: auto}":                                      "",
		"averaging={method: pipesgd, stale_layers: auto}":                                     "averaging.stale_layers is read with method sapipe only",
		"averaging={method: sapipe, stale_layers: 2, lambda: 1}":                              "averaging.lambda weighs a compensation, and averaging.compensation is none",
		"averaging={method: sapipe, stale_layers: 2, prediction: next}":                       "averaging.prediction wants one of local, prev_sync, local_prev_sync, none",
		"averaging={method: sapipe, stale_layers: 2, lambda: 1, compensation: diag}":          "",
		"averaging={method: sapipe, stale_layers: 2, warmup: 4, prediction: local_prev_sync}": "",
	} {
		_, _, err := Parse("job.yaml", []byte(shortest), []string{set}, own)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", set, err, want)
		}
	}
}
