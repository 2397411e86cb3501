package job

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"math"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/avgpipe/avgpipe/internal/strictyaml"
	"github.com/avgpipe/avgpipe/stage/model"
)

// TestGeneratedFilesAreCurrent holds the schema and the reference against what the types say. With -rewrite it writes them.
func TestGeneratedFilesAreCurrent(t *testing.T) {
	g := newGenerator(t)
	for path, want := range map[string][]byte{"schema.json": g.schemaFile(t), "../docs/job-file.md": g.reference()} {
		if flag.Lookup("rewrite").Value.String() == "true" {
			if err := os.WriteFile(path, want, 0o644); err != nil { //nolint:gosec // A file of the repository.
				t.Fatal(err)
			}
			continue
		}
		got, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%s is not what job.go says; run `go generate ./job`", path)
		}
	}
}

// generator writes files from the fields and their comments.
type generator struct {
	comments map[string]string // by "Struct.Field"; of a type by "Struct"
}

// newGenerator reads the comments of job.go.
func newGenerator(t *testing.T) *generator {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "job.go", nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	g := &generator{comments: map[string]string{}}
	for _, d := range file.Decls {
		d, ok := d.(*ast.GenDecl)
		if !ok || d.Tok != token.TYPE {
			continue
		}
		for _, s := range d.Specs {
			s, ok := s.(*ast.TypeSpec)
			if !ok {
				continue
			}
			fields, ok := s.Type.(*ast.StructType)
			if !ok {
				continue
			}
			for _, f := range fields.Fields.List {
				text := strings.Join(strings.Fields(f.Doc.Text()), " ")
				if text == "" {
					t.Fatalf("%s.%s has no comment", s.Name.Name, f.Names[0].Name)
				}
				g.comments[s.Name.Name+"."+f.Names[0].Name] = text
			}
		}
	}
	return g
}

// comment returns what job.go says about a field.
func (g *generator) comment(f strictyaml.Field) string {
	owner := reflect.TypeFor[Job]()
	if n := len(f.Index); n > 1 {
		owner = owner.FieldByIndex(f.Index[:n-1]).Type
	}
	return g.comments[owner.Name()+"."+owner.Field(f.Index[len(f.Index)-1]).Name]
}

// schemaFile returns the text of schema.json.
func (g *generator) schemaFile(t *testing.T) []byte {
	t.Helper()
	root := g.section("")
	root.set("$schema", "https://json-schema.org/draft/2020-12/schema")
	root.set("$id", "urn:avgpipe:job:1")
	root.set("title", "avgpipe job file, version 1")
	text, err := json.MarshalIndent(root, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	return append(text, '\n')
}

// object is a JSON object; its keys come out sorted.
type object map[string]any

func (o object) set(key string, value any) { o[key] = value }

// section returns the schema of a mapping.
func (g *generator) section(key string) object {
	properties, required := object{}, []string{}
	for _, f := range schema.Members(key) {
		one := g.value(f)
		one.set("description", g.comment(f))
		properties.set(f.Name(), one)
		if f.Required {
			required = append(required, f.Name())
		}
	}
	out := object{"type": "object", "additionalProperties": false, "properties": properties}
	if len(required) > 0 {
		out.set("required", required)
	}
	switch key {
	case "model":
		alone := func(keys ...string) object {
			return object{"required": keys, "not": object{"required": []string{"python"}}} // what may stand beside python the parser says
		}
		out.set("oneOf", []object{alone("family", "config"), alone("from"), {"required": []string{"python"}}})
	case "data":
		out.set("anyOf", []object{{"required": []string{"files"}}, {"required": []string{"samples"}}}) // not both: the parser says so
	case "train":
		var either []object
		for _, k := range (Train{}).budgetKeys() {
			either = append(either, object{"required": []string{strings.TrimPrefix(k.key, "train.")}})
		}
		out.set("oneOf", either)
	}
	return out
}

// value returns the schema of a field.
func (g *generator) value(f strictyaml.Field) object {
	var out object
	switch {
	case f.Word != "":
		out = object{"anyOf": []object{element(f.Type.Kind(), f.Rule), {"const": f.Word}}}
	case f.Type == reflect.TypeFor[time.Duration]():
		out = durationSchema()
	case f.Type.Kind() == reflect.Struct:
		return g.section(f.Key)
	case f.Type.Kind() == reflect.Slice:
		out = object{"type": "array", "minItems": f.MinItems, "items": g.entry(f)}
		if f.MaxItems > 0 {
			out.set("maxItems", f.MaxItems)
		}
		if f.Each != "" {
			either := []object{g.entry(f), out}
			if f.Alone != "" {
				either = append(either, object{"enum": []any{f.Alone, []string{f.Alone}}})
			}
			out = object{"anyOf": either}
		}
	default:
		out = element(f.Type.Kind(), f.Rule)
	}
	if d := f.Default; d != "" {
		out.set("default", json.RawMessage(d))
		if !json.Valid([]byte(d)) {
			out.set("default", d)
		}
	}
	return out
}

// durationSchema returns the schema of a duration.
func durationSchema() object {
	return object{"anyOf": []object{{"const": 0}, {"type": "string", "pattern": strictyaml.DurationPattern, "minLength": 1}}}
}

// entry returns the schema of an entry of a list.
func (g *generator) entry(f strictyaml.Field) object {
	if f.Type.Elem() == reflect.TypeFor[time.Duration]() {
		return durationSchema()
	}
	return element(f.Type.Elem().Kind(), f.Rule)
}

// element returns the schema of a value that is neither a section nor a list.
func element(kind reflect.Kind, r strictyaml.Rule) object {
	switch kind {
	case reflect.Bool:
		return object{"type": "boolean"}
	case reflect.Map:
		return object{"type": "object"}
	case reflect.Int:
		return bounds(object{"type": "integer"}, r)
	case reflect.Uint64:
		return object{"type": "integer", "minimum": 0, "maximum": uint64(math.MaxUint64)}
	case reflect.Float64:
		return bounds(object{"type": "number"}, r)
	default:
		switch {
		case r.OneOf != nil:
			return object{"enum": r.OneOf}
		case r.Pattern != nil:
			return object{"type": "string", "pattern": r.Pattern.String()}
		}
		return object{"type": "string", "minLength": 1}
	}
}

// bounds adds the bounds of a number.
func bounds(o object, r strictyaml.Rule) object {
	for name, bound := range map[string]float64{
		"minimum": r.Min, "maximum": r.Max, "exclusiveMinimum": r.Above, "exclusiveMaximum": r.Below,
	} {
		if !math.IsNaN(bound) {
			o.set(name, bound)
		}
	}
	return o
}

// reference returns the text of docs/job-file.md.
func (g *generator) reference() []byte {
	var b bytes.Buffer
	b.WriteString(introduction)
	for _, section := range mappings() {
		title := "Top level"
		if section != "" {
			title = "`" + section + "`"
		}
		fmt.Fprintf(&b, "\n## %s\n\n", title)
		if section != "" {
			fmt.Fprintf(&b, "%s\n\n", g.comment(fieldOf(section)))
		}
		b.WriteString("| key | holds | default | meaning |\n|---|---|---|---|\n")
		for _, f := range schema.Members(section) {
			fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", f.Name(), holds(f), fallback(f), cell(g.comment(f)))
		}
		if section == "model" {
			family(&b)
		}
	}
	return b.Bytes()
}

// mappings lists the sections of the file, the top one first.
func mappings() []string {
	out := []string{""}
	for _, f := range schema.Fields {
		if f.Type.Kind() == reflect.Struct {
			out = append(out, f.Key)
		}
	}
	return out
}

func fieldOf(key string) strictyaml.Field {
	for _, f := range schema.Fields {
		if f.Key == key {
			return f
		}
	}
	panic("no field " + key)
}

// holds says what a field may hold, in a table.
func holds(f strictyaml.Field) string {
	if f.Type.Kind() == reflect.Struct {
		return "[a section](#" + strings.ReplaceAll(f.Key, ".", "") + ")"
	}
	return cell(f.Wants())
}

// fallback says what an absent key means, in a table.
func fallback(f strictyaml.Field) string {
	switch {
	case f.Required:
		return "required"
	case f.Default != "":
		return "`" + f.Default + "`"
	}
	return ""
}

// cell escapes text for a table.
func cell(text string) string { return strings.ReplaceAll(text, "|", `\|`) }

// family documents the config of each model family.
func family(b *bytes.Buffer) {
	for _, name := range model.Families() {
		fmt.Fprintf(b, "\n### `model.config` of %s\n\n| key | holds | default | meaning |\n|---|---|---|---|\n", name)
		for _, f := range model.Fields(name) {
			value := ""
			if f.Default != nil {
				value = fmt.Sprintf("`%v`", f.Default)
			}
			fmt.Fprintf(b, "| `%s` | %s | %s | %s |\n", f.Name, f.Type, value, cell(f.Doc))
		}
	}
}

const introduction = `<!-- Generated from job/job.go by ` + "`go generate ./job`" + `. Change it there. -->

# The job file

A job file is YAML: one training run, submitted with ` + "`avgpipectl submit job.yaml`" + `. The shortest one:

` + "```yaml" + `
` + shortest + "```" + `

- It is read strictly. An unknown or repeated key, a value of the wrong type or out of bounds, and a missing key are all
  reported at once, each with ` + "`file:line:column`" + `, the line, what is allowed and the nearest valid key or value.
  Nothing starts, and the exit code is 2.
- ` + "`--set train.steps=50`" + ` replaces or adds a key, and may be repeated; the value is YAML, so lists are
  ` + "`[a, b]`" + `.
- In paths, ` + "`~`" + ` at the start is the home directory, ` + "`${NAME}`" + ` an environment variable of whoever
  submits, and ` + "`$$`" + ` a dollar sign. A variable that is not set is an error.
- Scalars follow YAML 1.2: ` + "`yes`" + ` and ` + "`010`" + ` are text, ` + "`1e3`" + ` is a number. Anchors, aliases, tags
  and merge keys are refused.
- [job/schema.json](../job/schema.json) is the same as a JSON Schema, for editors.
`

// shortest is the job file that the reference shows.
const shortest = `version: 1
model:
  family: gpt2
  config: {n_layer: 4, n_embd: 128, n_head: 4, n_positions: 128, vocab_size: 256}
data:
  files: [corpus.txt]
optimizer:
  lr: 1e-3
train:
  steps: 1000
  batch: 16
`
