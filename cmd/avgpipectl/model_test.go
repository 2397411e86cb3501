package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/node/nodetest"
)

// fakeDaemon puts a script in place of the avgpiped that computes. It is called as `infer -- REQUEST INPUT...`; the script sees all behind
// the dashes.
func fakeDaemon(t *testing.T, script string) {
	t.Helper()
	bin := t.TempDir()
	head := "#!/bin/sh\n[ \"$1 $2\" = \"infer --\" ] || exit 9\nshift 2\n"
	if err := os.WriteFile(filepath.Join(bin, "avgpiped"), []byte(head+script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
}

// emptyModel is a directory that looks like a model from outside.
func emptyModel(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestGenerate(t *testing.T) {
	d := nodetest.Start(t, nodetest.StateDir(t))
	want(t, exitDone, d, "submit", "--watch", jobFile(t, d, "good", 20, ""))
	fakeDaemon(t, "piece() { echo \"{\\\"text\\\":\\\"$(base64 -w0)\\\"}\"; }\n"+
		"ls \"$(echo \"$1\" | sed 's/.*\"model\":\"//; s/\".*//')\" | piece\necho \"$1\" | sed 's/\"model\":\"[^\"]*\",//' | piece\n"+
		"echo '{\"end\":{\"prompt\":\"func \",\"finish_reason\":\"length\",\"prompt_tokens\":2,\"tokens\":7,\"prompt_seconds\":0.25,\"tokens_per_second\":81.25}}'\n")
	expected := func(name string) string {
		return "avgpipe-export.json\nconfig.json\nmodel.safetensors\n" +
			`{"verb":"generate","name":"` + name + `","prompt":"func ","tokens":7,"temperature":0.5,"top_k":3,"top_p":0.9,"seed":9,"stop":["a","b c"],"precision":"bf16"}` + "\n"
	}
	flags := []string{"--prompt", "func ", "--tokens", "7", "--temperature", "0.5", "--top-k", "3", "--seed", "9", "--top-p", "0.9", "--stop", "a", "--stop", "b c", "--precision", "bf16"}
	r := want(t, exitDone, d, append([]string{"generate", "good"}, flags...)...)
	if r.out != expected("job 1 (good)")+"\n" || r.messages != "7 tokens, 81.2 a second; the prompt of 2 took 0.25 s\n" {
		t.Errorf("generate from a job: %q, %q", r.out, r.messages)
	}
	model := filepath.Join(d.Dir, "model")
	want(t, exitDone, d, "export", "good", model)
	r = want(t, exitDone, nil, append([]string{"generate", model, "-o", "json"}, flags...)...)
	var view api.Generation
	if err := json.Unmarshal([]byte(r.out), &view); err != nil || view.Prompt != "func " || view.Text != expected("model "+model) || view.Tokens != 7 {
		t.Errorf("generate -o json from a directory: %v, %s", err, r.out)
	}
}

func TestPredictPrintsALineForEachInput(t *testing.T) {
	class := `{"input":"a b","guesses":[[{"id":1,"label":"spam","probability":0.75},{"id":0,"label":"ham","probability":0.25}]]}`
	words := `{"input":"the [MASK]","text":"the dog","guesses":[[{"id":5,"label":"dog","probability":0.5}]]}`
	fakeDaemon(t, fmt.Sprintf("[ \"$2 $3\" = \"a b \" ] || exit 8\ncase $1 in *'\"predict\"'*'\"top\":'*) echo '%s'; echo '%s';; esac\n", class, words))
	model := emptyModel(t)
	if r := want(t, exitDone, nil, "predict", model, "--top", "2", "a b"); r.out != "spam 0.7500, ham 0.2500\ta b\nthe dog\tdog 0.5000\n" {
		t.Errorf("predict --top 2: %q", r.out)
	}
	r := want(t, exitDone, nil, "predict", model, "-o", "json", "a b")
	var p api.Prediction
	if err := json.NewDecoder(strings.NewReader(r.out)).Decode(&p); err != nil || p.Guesses[0][0].Label != "spam" {
		t.Errorf("predict -o json: %v\n%s", err, r.out)
	}
	if line := predictionLine(api.Prediction{Input: "x", Guesses: [][]api.Guess{{{Label: "7", Probability: 1}}}}, 1); line != "7\t1.0000\tx" {
		t.Errorf("a class alone is shown as %q", line)
	}
	want(t, exitRefused, nil, "predict", model, "--top", "0", "x")
}

func TestEvaluatePrintsWhatTheTaskHas(t *testing.T) {
	scores := `{"task":"classification","samples":9,"targets":9,"loss":0.5,"perplexity":null,"accuracy":0.875,"f1":0.5,"bleu":null,` +
		`"classes":[{"label":"ham","targets":5,"predicted":4,"correct":4,"f1":0.8889}]}`
	fakeDaemon(t, fmt.Sprintf("case $1 in *'\"evaluate\"'*'\"files\":[\"x.csv\"],\"held_out\":true,\"samples\":9}') echo '%s';; esac\n", scores))
	model := emptyModel(t)
	flags := []string{"evaluate", model, "--data", "x.csv", "--samples", "9", "--held-out"}
	r := want(t, exitDone, nil, flags...)
	for _, says := range []string{"0.5000 nats per sample", "87.50%", "0.5000", "ham    5"} {
		if !strings.Contains(r.out, says) {
			t.Errorf("evaluate: no %q in:\n%s", says, r.out)
		}
	}
	if strings.Contains(r.out, "perplexity") || strings.Contains(r.out, "BLEU") {
		t.Errorf("evaluate shows what a classifier does not have:\n%s", r.out)
	}
	var s api.Scores
	if err := json.Unmarshal([]byte(want(t, exitDone, nil, append(flags, "-o", "json")...).out), &s); err != nil || s.Samples != 9 {
		t.Errorf("evaluate -o json: %v, %+v", err, s)
	}
	want(t, exitRefused, nil, "evaluate", model)
}

func TestTheProgramThatComputesSaysWhyItFailed(t *testing.T) {
	fakeDaemon(t, "echo no such class >&2\nexit 2\n")
	if r := want(t, exitRefused, nil, "predict", emptyModel(t), "x"); r.messages != "no such class\n" {
		t.Errorf("messages: %q", r.messages)
	}
	fakeDaemon(t, "echo nonsense; exec sleep 60\n")
	if r := want(t, exitFailed, nil, "predict", emptyModel(t), "x"); !strings.Contains(r.messages, "read what avgpiped computed") {
		t.Errorf("messages: %q", r.messages)
	}
}

func TestWhatIsNoModelIsSaid(t *testing.T) {
	d := nodetest.Start(t, nodetest.StateDir(t))
	t.Chdir(t.TempDir())
	interrupted := `{"magic": "AVGEXPORT", "version": 1, "job": "1", "name": "x", "complete": false, "files": []}`
	for dir, files := range map[string]map[string]string{"empty": nil, "half": {"avgpipe-export.json": interrupted}} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		for name, content := range files {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := os.WriteFile("file", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for what, says := range map[string]string{
		"./empty": "./empty is a directory without a config.json", "./none": "no such file", "./file": "is a file; a model is a directory",
		"half": "interrupted; finish it with: avgpipectl export JOB half --force", "empty": "and empty is a directory without a config.json",
	} {
		if r := want(t, exitRefused, d, "generate", what); !strings.Contains(r.messages, says) {
			t.Errorf("generate %s: %s", what, r.messages)
		}
	}
	if r := want(t, exitFailed, d, "generate", "nobody"); !strings.Contains(r.messages, `no job "nobody"`) || strings.Contains(r.messages, "directory") {
		t.Errorf("generate nobody: %s", r.messages)
	}
}
