package spec

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/internal/access"
	"github.com/avgpipe/avgpipe/internal/pinned"
	"github.com/avgpipe/avgpipe/job"
)

var rewrite = flag.Bool("rewrite", false, "write the golden file")

// fill sets every field of a value to something that is not its zero.
func fill(v reflect.Value) {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				fill(v.Field(i))
			}
		}
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem())
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		fill(v.Index(0))
		fill(v.Index(1))
	case reflect.Array:
		for i := range v.Len() {
			fill(v.Index(i))
		}
	case reflect.String:
		v.SetString("text")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int64:
		v.SetInt(7)
	case reflect.Uint32, reflect.Uint64:
		v.SetUint(8)
	case reflect.Float64:
		v.SetFloat(0.5)
	case reflect.Map:
		v.Set(reflect.ValueOf(map[string]any{"n_embd": 8.0}))
	default:
		panic("a field of kind " + v.Kind().String())
	}
}

// TestNamesOfASpecAreNotThoseOfGoFields: a spec with every field is written as testdata/spec.json has it, whatever its fields are called
// in Go. Who changes that file raises Version, and reads the former one as well.
func TestNamesOfASpecAreNotThoseOfGoFields(t *testing.T) {
	full := Spec{Model: json.RawMessage(`{"n_embd": 8}`), Why: []string{"why"}, Warnings: []string{"warning"}, User: &access.User{}, UserPlan: []string{"F0 B0"}}
	fill(reflect.ValueOf(&full.Job).Elem())
	fill(reflect.ValueOf(full.User).Elem())
	full.Layout, full.Budget = &Layout{}, &job.Budget{}
	fill(reflect.ValueOf(full.Layout).Elem())
	fill(reflect.ValueOf(full.Budget).Elem())
	full.Weights, full.Tokenizer, full.Program, full.Files = map[string]string{"model.safetensors": "0123"}, "4567", "cdef", "89ab"
	full.Before = json.RawMessage(`{"version": 9}`)
	full.Remote = make([]pinned.Object, 1)
	fill(reflect.ValueOf(&full.Remote[0]).Elem())
	full.Version, full.Task, full.Parameters, full.Retune = Version, "language", 9, true
	text, err := json.MarshalIndent(&full, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join("testdata", "spec.json")
	if *rewrite {
		if err := os.WriteFile(path, append(text, '\n'), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	golden, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(golden) != string(text)+"\n" {
		t.Errorf("a spec is written as\n%s", text)
	}
	var read Spec
	if err := json.Unmarshal(golden, &read); err != nil {
		t.Fatal(err)
	}
	read.placement = nil
	if again, err := json.MarshalIndent(&read, "", "  "); err != nil || string(again) != string(text) {
		t.Errorf("it is read as\n%s (%v)", again, err)
	}
}

// TestZerosAreReadAsZeros: a key of a job that is zero is no default of the job file, whether the spec writes it or not, and however often it is read.
func TestZerosAreReadAsZeros(t *testing.T) {
	s, expected := &Spec{Version: Version}, job.Job{Groups: 1}
	for range 2 {
		text, err := Encode(s)
		if err != nil {
			t.Fatal(err)
		}
		if s, err = Decode("1", text, nil); err != nil || !reflect.DeepEqual(s.Job, expected) {
			t.Errorf("%s is read as\n%+v (%v), expected\n%+v", text, s.Job, err, expected)
		}
	}
}

// TestUnknownFieldsAreRefused, at any depth, in specs of every version.
func TestUnknownFieldsAreRefused(t *testing.T) {
	for _, text := range []string{
		`{"version": 4, "job": {"stages": 2, "stagez": 3}}`,
		`{"version": 4, "job": {"devices": {"cpu": {"cores": 3}}}}`,
		`{"version": 4, "job": {"MicroBatches": 2}}`,
		`{"version": 4, "layuot": {}}`,
		`{"version": 5, "layuot": {}}`,
		`{"version": 3, "job": {"Stagez": 2}}`,
		`{"version": 3, "job": {"Averaging": {"Alfa": 1}}}`,
		`{"version": 2, "job": {"Averaging": {"Alpha": 1}}}`,
		`{"version": 6, "layuot": {}}`,
		`{"version": 7, "layuot": {}}`,
		`{"version": 8, "layuot": {}}`,
		`{"version": 9, "layuot": {}}`,
		`{"version": 10, "layuot": {}}`,
		`{"version": 11, "layuot": {}}`,
		`{"version": 12, "layuot": {}}`,
		`{"version": 13, "layuot": {}}`,
		`{"version": 14}`,
	} {
		if s, err := Decode("1", []byte(text), nil); err == nil || !strings.Contains(err.Error(), "update this node") {
			t.Errorf("%s is read as %+v (%v)", text, s, err)
		}
	}
}

// TestPlansOfEarlierSpecs: a plan that a user wrote was a list of operations for each device in version 3; it is lines.
func TestPlansOfEarlierSpecs(t *testing.T) {
	const old = `{"version": 3, "job": {"Stages": 1, "Pipelines": 1, "MicroBatches": 2, "Schedule": "file:/plan"}, "plan": [[
		{"Kind": 0, "Stage": 0, "Micro": 0, "Version": 0}, {"Kind": 1, "Stage": 0, "Micro": 0, "Version": 0},
		{"Kind": 0, "Stage": 0, "Micro": 1, "Version": 0}, {"Kind": 2, "Stage": 0, "Micro": 1, "Version": 0}, {"Kind": 3, "Stage": 0, "Micro": 1, "Version": 0}]]}`
	s, err := Decode("1", []byte(old), nil)
	if err != nil {
		t.Fatal(err)
	}
	plan, _, err := s.Plan()
	if err != nil || strings.Join(plan.Lines(), "|") != "F0 B0 F1 I1 W1" || s.Job.MicroBatches != 2 {
		t.Errorf("%v, %v of %d micro-batches", plan.Lines(), err, s.Job.MicroBatches)
	}
}

// TestASpecHasTheVersionOfWhatItSays: programs of the version before read what uses nothing new.
func TestASpecHasTheVersionOfWhatItSays(t *testing.T) {
	for want, s := range map[string]Spec{
		`{"version":9,`:  {},
		`{"version":10,`: {Before: json.RawMessage(`{}`)},
		`{"version":11,`: {Before: json.RawMessage(`{}`), Remote: []pinned.Object{{Name: "x"}}},
		`{"version":13,`: {Job: job.Job{Model: job.Model{Python: "train.py:build"}, Train: job.Train{CriticalBatch: job.AutoCriticalBatch}}},
		`{"version":12,`: {Remote: []pinned.Object{{Name: "x"}}, Job: job.Job{Train: job.Train{CriticalBatch: job.AutoCriticalBatch}}},
	} {
		s.Version = Version
		if text, err := Encode(&s); err != nil || !strings.HasPrefix(string(text), want) {
			t.Errorf("written as %.40s (%v), expected %s", text, err, want)
		}
	}
}
