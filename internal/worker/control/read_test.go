package control

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// earlier are parts of a file of version 2, as the program before wrote it: of a worker and of a tuning.
const (
	earlierJob = `{"Name": "old", "Model": {"Family": "gpt2", "Config": {"n_embd": 8, "Names": {"Pad": 1}}}, "Train": {"Batch": 4, "MaxTime": 7200000000000, "EvalEvery": 5},
		"Optimizer": {"LearningRate": 0.5, "MinimumRatio": 0.2}, "Stages": 2, "MicroBatches": 2, "Averaging": {"RateScale": 1.5, "Tau": 2},
		"Devices": {"Kind": "emulated", "Emulated": {"FLOPs": [1, 2]}}, "Seed": 18446744073709551615}`
	earlierAssignment = `{"version": 2, "job": "1", "generation": 3, "node": "n", "dir": "/d", "spec": ` + earlierJob + `, "user": {"uid": 7, "gids": [8]},
		"stages": [{"node": "n", "address": ""}], "schedule": "1f1b", "plan": ["F0 B0"], "budget": {"samples": 80, "steps": 10, "warmup": 1, "t0": 2},
		"split": [[0, 3], [3, 4]], "cores": [0], "orphan_after": 60}`
	earlierRequest = `{"version": 2, "job": "1", "node": "n", "dir": "/d", "spec": ` + earlierJob + `, "cores": [0], "node_cores": 2, "retune": true, "bounded": true, "estimate": false}`
)

func write(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file.json")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestFilesOfTheVersionBefore(t *testing.T) {
	a, err := ReadAssignment(write(t, earlierAssignment))
	if err != nil {
		t.Fatal(err)
	}
	if s := a.Spec; a.JobID != "1" || a.Generation != 3 || len(a.Stages) != 1 || a.OrphanAfter != 60 || s.User.UID != 7 || s.Budget.Steps != 10 ||
		fmt.Sprint(s.Split()) != "[[0 3] [3 4]]" {
		t.Errorf("the assignment is %+v", a)
	}
	r, err := ReadTuneRequest(write(t, earlierRequest))
	if err != nil || !r.Spec.Retune || !r.Bounded || r.NodeCores != 2 {
		t.Errorf("the request is %+v, %v", r, err)
	}
	for _, j := range []any{a.Spec.Job, r.Spec.Job} {
		found := fmt.Sprintf("%+v", j)
		for _, part := range []string{
			"Name:old", "map[Names:map[Pad:1] n_embd:8]", "MaxTime:2h0m0s", "EvalEvery:5", "LearningRate:0.5", "MinimumRatio:0.2", "MicroBatches:2",
			"RateScale:1.5", "FLOPs:[1 2]", "Seed:18446744073709551615",
		} {
			if !strings.Contains(found, part) {
				t.Errorf("the job has no %s: %s", part, found)
			}
		}
	}
}

func TestFilesThatNoDaemonWrites(t *testing.T) {
	for text, want := range map[string]string{
		`{"version": 1}`: "version 1, this program reads 2 and 3", `{"version": 4}`: "version 4, this program reads 2 and 3",
		`{}`: "version", `[`: "unexpected end", `{"version": 3, "jub": "1"}`: `unknown field "jub"`,
		`{"version": 3, "spec": {"version": 4, "jub": {}}}`:           `unknown field "jub"`,
		strings.Replace(earlierAssignment, `"Stages"`, `"Stagez"`, 1): `unknown field "stagez"`,
	} {
		if _, err := ReadAssignment(write(t, text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}
