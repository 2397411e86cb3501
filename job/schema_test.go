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

	"github.com/avgpipe/avgpipe/internal/strictyaml"
	"github.com/avgpipe/avgpipe/stage/model"
)

// compileSchema returns schema.json.
func compileSchema(t testing.TB) *jsonschema.Schema {
	t.Helper()
	text, err := os.ReadFile("schema.json")
	if err != nil {
		t.Fatal(err)
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
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
func document(n *strictyaml.Node) any {
	switch n.Kind {
	case strictyaml.Mapping:
		m := map[string]any{}
		for _, e := range n.Entries {
			m[e.Name] = document(e.Value)
		}
		return m
	case strictyaml.List:
		l := make([]any, len(n.Items))
		for i, item := range n.Items {
			l[i] = document(item)
		}
		return l
	case strictyaml.Bool:
		return n.Scalar == "true"
	case strictyaml.Int, strictyaml.Float:
		if i, err := strconv.ParseInt(n.Scalar, 0, 64); err == nil {
			return json.Number(strconv.FormatInt(i, 10))
		}
		if x, err := strconv.ParseFloat(n.Scalar, 64); err == nil && !math.IsInf(x, 0) && !math.IsNaN(x) {
			return json.Number(n.Scalar)
		}
		return nil // .nan and the like are not in JSON
	case strictyaml.Text:
		return n.Scalar
	default:
		return nil
	}
}

// beyond tells the problems that are about several fields at once, which the schema does not say, from those about one.
var beyond = regexp.MustCompile(`does not divide|one group sends none|to be measured, which|has entries for|more than the|more than all of|is read by|looks ahead|is not set|is set; |beside model\.python|beside data\.samples|function of the file of model\.python|behind a colon|model\.python (has|learns)|of the task images|is of texts|starts a variable|home directory`)

// agrees compares the verdicts of parser and schema on a file. A file that is not a plain YAML mapping is the parser's
// business alone.
func agrees(t *testing.T, compiled *jsonschema.Schema, name, source string, set []string) {
	t.Helper()
	text := schema.Read("job.yaml", []byte(source), set...)
	if text.Err() != nil {
		return
	}
	env := environment
	env.Families, env.Schedules, env.Methods = nil, nil, nil // the schema does not know the names
	_, _, err := Parse("job.yaml", []byte(source), set, env)
	accepted := true
	problems, _ := err.(strictyaml.Problems) //nolint:errorlint // Nil when there is no error.
	for _, p := range problems {
		accepted = accepted && beyond.MatchString(p.Message)
	}
	verdict := compiled.Validate(document(text.Root))
	if accepted != (verdict == nil) {
		t.Errorf("%s: the parser says %v\nthe schema says %v", name, err, verdict)
	}
}

// TestSchemaAgreesWithParser holds every field to many values, good and bad: what one refuses, the other refuses.
func TestSchemaAgreesWithParser(t *testing.T) {
	compiled := compileSchema(t)
	values := []string{
		"null", "true", "yes", "text", `""`, "'5'", "-1", "0", "0.5", "1", "1.0", "1.5", "2", "64", "65", "1e3", "1e20", "-0.0",
		"0x10", "010", ".inf", "18446744073709551615", "18446744073709551616", "[]", "[0.5, 0.9]", "[0.5, 1]", "[0.5]", "[x]",
		`[x, ""]`, "[x, 1]", "{}", "{x: 1}", "auto", "90s", "1h30m", "1m1h", "-5s", "1d", "1.5h", "s", "bad name", "-x",
	}
	for _, f := range schema.Fields {
		own := values
		for _, bound := range []float64{f.Min, f.Max, f.Above, f.Below} {
			if !math.IsNaN(bound) {
				for _, x := range []float64{bound - 1, bound, bound + 1} {
					own = append(own, strconv.FormatFloat(x, 'f', -1, 64))
				}
			}
		}
		own = append(own, f.OneOf...)
		if words := f.OneOf; words != nil {
			own = append(own, "["+words[0]+"]", "["+strings.Join(words, ", ")+"]", "["+words[0]+", x]", "["+words[0]+", 1]")
			own = append(own, "["+words[0]+", auto]", "[auto, auto]", "[auto]")
		}
		for _, v := range own {
			set := []string{f.Key + "=" + v}
			agrees(t, compiled, set[0], shortest, set)
			if f.Optional && strictyaml.Parent(f.Key) == "train" { // one of which gives the budget
				agrees(t, compiled, set[0]+" alone", strings.Replace(shortest, "steps: ", "# steps: ", 1), set)
			}
		}
		agrees(t, compiled, "unknown key", shortest, []string{parentKey(f.Key, "nonsense") + "=1"})
	}
	for _, f := range schema.Fields {
		if f.Required {
			agrees(t, compiled, "without "+f.Key, without(t, f.Key), nil)
		}
	}
	agrees(t, compiled, "model.from alone", strings.Replace(shortest, "config: {", "from: x # {", 1), nil)
	agrees(t, compiled, "neither", strings.Replace(shortest, "config: {", "# {", 1), nil)
}

func parentKey(key, name string) string { return strictyaml.Join(strictyaml.Parent(key), name) }

// without returns the shortest file, with the section that need not be there and has a required key, less a key.
func without(t *testing.T, key string) string {
	t.Helper()
	var m map[string]any
	text, err := json.Marshal(document(schema.Read("", []byte(shortest), "lora.targets=[x]").Root))
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
	compiled := compileSchema(t)
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
		if err := compiled.Validate(document(schema.Read(path, []byte(source)).Root)); err != nil {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// TestAJobSurvivesJSON: as a worker receives it.
func TestAJobSurvivesJSON(t *testing.T) {
	j, _, err := Parse("job.yaml", []byte(shortest), []string{"model.config={n_embd: .5}"}, environment)
	if err != nil {
		t.Fatal(err)
	}
	j.Model.Args = strictyaml.JSON{"float": json.Number("1.0"), "int": json.Number("123456789012345678901"), "list": []any{json.Number("2.0"), nil, true, "3"}}
	text, err := json.Marshal(j)
	if err != nil {
		t.Fatal(err)
	}
	var back Job
	if err := json.Unmarshal(text, &back); err != nil || !reflect.DeepEqual(*j, back) {
		t.Errorf("through JSON %v: %v", back, err)
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
