package job

import (
	"bytes"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/avgpipe/avgpipe/stage/model"
)

// compileSchema returns the embedded schema.
func compileSchema(t testing.TB) *jsonschema.Schema {
	t.Helper()
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(Schema))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("job.json", doc); err != nil {
		t.Fatal(err)
	}
	s, err := c.Compile("job.json")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// document returns a tree as the values that a JSON parser gives for the same text.
func document(n *node) any {
	switch n.kind {
	case mapping:
		m := map[string]any{}
		for _, e := range n.entries {
			m[e.name] = document(e.value)
		}
		return m
	case list:
		l := make([]any, len(n.items))
		for i, item := range n.items {
			l[i] = document(item)
		}
		return l
	case boolean:
		return n.scalar == "true"
	case integer, float:
		if i, err := strconv.ParseInt(n.scalar, 0, 64); err == nil {
			return json.Number(strconv.FormatInt(i, 10))
		}
		if x, err := strconv.ParseFloat(n.scalar, 64); err == nil && !math.IsInf(x, 0) && !math.IsNaN(x) {
			return json.Number(n.scalar)
		}
		return nil // .nan and the like are not in JSON
	case text:
		return n.scalar
	default:
		return nil
	}
}

// beyond tells the problems that are about several fields at once, which the schema does not say, from those about one.
var beyond = regexp.MustCompile("does not divide|has entries for|more than the|is read by|looks ahead|is not set|is set; |starts a variable|home directory")

// agrees compares the verdicts of parser and schema on a file. A file that is not a plain YAML mapping is the parser's
// business alone.
func agrees(t *testing.T, schema *jsonschema.Schema, name, source string, set []string) {
	t.Helper()
	root, faults := tree([]byte(source), set)
	if root == nil || len(faults) > 0 {
		return
	}
	env := environment
	env.Families, env.Schedules, env.Methods = nil, nil, nil // the schema does not know the names
	_, _, err := Parse("job.yaml", []byte(source), set, env)
	accepted := true
	problems, _ := err.(Problems) //nolint:errorlint // Nil when there is no error.
	for _, p := range problems {
		accepted = accepted && beyond.MatchString(p.Message)
	}
	verdict := schema.Validate(document(root))
	if accepted != (verdict == nil) {
		t.Errorf("%s: the parser says %v\nthe schema says %v", name, err, verdict)
	}
}

// TestSchemaAgreesWithParser holds every field to many values, good and bad: what one refuses, the other refuses.
func TestSchemaAgreesWithParser(t *testing.T) {
	schema := compileSchema(t)
	values := []string{
		"null", "true", "yes", "text", `""`, "'5'", "-1", "0", "0.5", "1", "1.0", "1.5", "2", "64", "65", "1e3", "1e20", "-0.0",
		"0x10", "010", ".inf", "18446744073709551615", "18446744073709551616", "[]", "[0.5, 0.9]", "[0.5, 1]", "[0.5]", "[x]",
		`[x, ""]`, "[x, 1]", "{}", "{x: 1}", "auto", "90s", "1h30m", "1m1h", "-5s", "1d", "1.5h", "s", "bad name", "-x",
	}
	for _, f := range fields {
		own := values
		for _, bound := range []float64{f.rule.min, f.rule.max, f.rule.above, f.rule.below} {
			if !math.IsNaN(bound) {
				for _, x := range []float64{bound - 1, bound, bound + 1} {
					own = append(own, strconv.FormatFloat(x, 'f', -1, 64))
				}
			}
		}
		own = append(own, f.rule.oneof...)
		if words := f.rule.oneof; words != nil {
			own = append(own, "["+words[0]+"]", "["+strings.Join(words, ", ")+"]", "["+words[0]+", x]", "["+words[0]+", 1]")
			own = append(own, "["+words[0]+", auto]", "[auto, auto]", "[auto]")
		}
		for _, v := range own {
			set := []string{f.key + "=" + v}
			agrees(t, schema, set[0], shortest, set)
			if f.rule.optional && parent(f.key) == "train" { // one of which gives the budget
				agrees(t, schema, set[0]+" alone", strings.Replace(shortest, "steps: ", "# steps: ", 1), set)
			}
		}
		agrees(t, schema, "unknown key", shortest, []string{parentKey(f.key, "nonsense") + "=1"})
	}
	for _, f := range fields {
		if f.rule.required {
			agrees(t, schema, "without "+f.key, without(t, f.key), nil)
		}
	}
	agrees(t, schema, "model.from alone", strings.Replace(shortest, "config: {", "from: x # {", 1), nil)
	agrees(t, schema, "neither", strings.Replace(shortest, "config: {", "# {", 1), nil)
}

func parentKey(key, name string) string { return join(parent(key), name) }

// without returns the shortest file less a key.
func without(t *testing.T, key string) string {
	t.Helper()
	var m map[string]any
	root, _ := tree([]byte(shortest), nil)
	text, err := json.Marshal(document(root))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &m); err != nil {
		t.Fatal(err)
	}
	at := m
	names := strings.Split(key, ".")
	for _, name := range names[:len(names)-1] {
		next, ok := at[name].(map[string]any)
		if !ok {
			t.Fatalf("%s is no section of the shortest file", name)
		}
		at = next
	}
	if _, ok := at[names[len(names)-1]]; !ok {
		t.Fatalf("the shortest file does not have %s", key)
	}
	delete(at, names[len(names)-1])
	if text, err = json.Marshal(m); err != nil { // JSON is YAML
		t.Fatal(err)
	}
	return string(text)
}

// TestExamplesFitTheSchema: what the repository shows is valid, to the parser and to an editor.
func TestExamplesFitTheSchema(t *testing.T) {
	schema := compileSchema(t)
	paths, err := filepath.Glob("../examples/*.yaml")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no examples: %v", err)
	}
	env := environment
	env.Lookup = func(name string) (string, bool) { return "/" + name, true }
	env.Families = model.Families()
	sources := map[string]string{"docs/job-file.md": shortest}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		sources[path] = string(text)
	}
	for path, source := range sources {
		if _, _, err := Parse(path, []byte(source), nil, env); err != nil {
			t.Error(err)
		}
		root, _ := tree([]byte(source), nil)
		if err := schema.Validate(document(root)); err != nil {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// TestDefaultsAreValid: a job with the required fields and nothing else passes, and each default is within its own rule.
func TestDefaultsAreValid(t *testing.T) {
	j := Default()
	required := map[string]bool{}
	for _, f := range fields {
		required[f.key] = f.rule.required || f.key == "model.family" || f.key == "name" || f.key == "train.steps"
	}
	for _, f := range j.faults(Environment{}, nil) {
		if !required[f.key] {
			t.Errorf("the default of %s does not fit: %s", f.key, f.message)
		}
	}
	j.Version, j.Name = Version, "x"
	j.Model = Model{Family: "gpt2", Config: map[string]any{}}
	j.Data.Files, j.Optimizer.LearningRate = []string{"x"}, 1
	j.Train.Steps, j.Train.Batch = 1, 1
	if err := j.Validate(environment); err != nil {
		t.Error(err)
	}
	text, err := json.Marshal(j) // as a worker receives it
	if err != nil {
		t.Fatal(err)
	}
	var back Job
	if err := json.Unmarshal(text, &back); err != nil || !reflect.DeepEqual(*j, back) {
		t.Errorf("through JSON %v: %v", back, err)
	}
	j.Train.Batch, j.Schedule = 0, "afb"
	want := `schedule: schedule wants one of 1f1b, afp, gpipe; found "afb"` + "\n  nearest: afp"
	if err := j.Validate(environment); err == nil || !strings.Contains(err.Error(), want) ||
		!strings.Contains(err.Error(), "train.batch wants a whole number from 1") {
		t.Errorf("error %v, want %s", err, want)
	}
}

// TestDurationsFit: the longest that the pattern allows is no overflow.
func TestDurationsFit(t *testing.T) {
	longest := "999999.999999999h999999.999999999m999999999.999999999s999999999.999999999ms"
	for _, text := range []string{longest, "1.5h", "1h30m", "90s", "250ms", "0s"} {
		j, _, err := Parse("job.yaml", []byte(shortest), []string{"train.max_time=" + text}, environment)
		if err != nil || j.Train.MaxTime < 0 {
			t.Errorf("%s: %v", text, err)
		}
	}
	for _, text := range []string{"1000000h", "1m1h", "1h 30m", "h", "1.h", "1us"} {
		if _, _, err := Parse("job.yaml", []byte(shortest), []string{"train.max_time=" + text}, environment); err == nil {
			t.Errorf("%s passes", text)
		}
	}
}
