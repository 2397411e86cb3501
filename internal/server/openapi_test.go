package server

import (
	"bytes"
	"cmp"
	"encoding/json"
	"flag"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/avgpipe/avgpipe/internal/api"
)

var rewrite = flag.Bool("rewrite", false, "write openapi.json")

// TestDescriptionIsCurrent holds openapi.json against the routes and the types. With -rewrite it writes the file.
func TestDescriptionIsCurrent(t *testing.T) {
	want := (&describer{t: t, schemas: object{}}).document((&handler{backend: &private{}, log: zap.NewNop()}).routes())
	if *rewrite {
		if err := os.WriteFile("openapi.json", want, 0o644); err != nil { //nolint:gosec // a file of the repository
			t.Fatal(err)
		}
		return
	}
	if !bytes.Equal(Description, want) {
		t.Error("openapi.json is not what the routes and types say; run `go generate ./internal/server`")
	}
}

// object is a JSON object; its keys come out sorted.
type object = map[string]any

// describer makes the description of the API from the routes, and the schemas of types from their fields, tags and comments.
type describer struct {
	t       *testing.T
	schemas object                  // by the name of the type
	types   map[string]reflect.Type // that schemas are of
	sources map[string]*source      // by import path
	strict  bool                    // of requests, which may not have other keys
}

// source is what a package's text says of its types.
type source struct {
	comments map[string]string   // by "Type" and "Type.Field"
	values   map[string][]string // of constants, by "Type"
}

var parameterInPath = regexp.MustCompile(`\{(\w+)\}`)

func (d *describer) document(routes []route) []byte {
	paths := object{}
	for _, r := range routes {
		operations, ok := paths[r.path].(object)
		if !ok {
			operations = object{}
			paths[r.path] = operations
		}
		operations[strings.ToLower(r.method)] = d.operation(r)
	}
	failure := d.schema(reflect.TypeFor[api.Error]())
	text, err := json.MarshalIndent(object{
		"openapi": "3.1.0",
		"info": object{
			"title": "avgpiped", "version": "1",
			"description": "The API that avgpiped serves on its unix socket. An answer that is not 2xx is an Error; its code keeps its " +
				"meaning, its text may change. Objects may gain keys; a request with a key or a parameter that it does not have is refused.",
		},
		"paths": paths,
		"components": object{
			"schemas": d.schemas,
			"responses": object{"Error": object{
				"description": "The request was not carried out.", "content": object{typeJSON: object{"schema": failure}},
			}},
		},
	}, "", "  ")
	if err != nil {
		d.t.Fatal(err)
	}
	return append(text, '\n')
}

func (d *describer) operation(r route) object {
	content := object{}
	if r.answer != nil {
		content["schema"] = d.schema(reflect.TypeOf(r.answer))
	}
	success := object{
		"description": http.StatusText(cmp.Or(r.status, http.StatusOK)),
		"content":     object{cmp.Or(r.contentType, typeJSON): content},
	}
	if r.contentType == typeLines {
		success["description"] = "A JSON value per line; the schema is that of a line."
	}
	out := object{
		"operationId": r.name, "summary": r.does, "description": "Who may: " + string(r.who),
		"responses": object{
			strconv.Itoa(cmp.Or(r.status, http.StatusOK)): success,
			"default": object{"$ref": "#/components/responses/Error"},
		},
	}
	var parameters []object
	for _, m := range parameterInPath.FindAllStringSubmatch(r.path, -1) {
		parameters = append(parameters, object{
			"name": m[1], "in": "path", "required": true, "schema": object{"type": "string"},
			"description": "The id of a job, or the name of exactly one.",
		})
	}
	for _, p := range r.query {
		parameters = append(parameters, object{
			"name": p.name, "in": "query", "description": p.does, "schema": d.schema(reflect.TypeOf(p.example)),
		})
	}
	if parameters != nil {
		out["parameters"] = parameters
	}
	if r.request != nil {
		d.strict = true
		out["requestBody"] = object{
			"required": true, "content": object{typeJSON: object{"schema": d.schema(reflect.TypeOf(r.request))}},
		}
		d.strict = false
	}
	if r.contentIn != "" {
		out["requestBody"] = object{"required": true, "content": object{r.contentIn: object{}}}
	}
	return out
}

// schema is the schema of a type; one with a name is put among the components.
func (d *describer) schema(t reflect.Type) object {
	switch {
	case t == reflect.TypeFor[time.Time]():
		return object{"type": "string", "format": "date-time"}
	case t == reflect.TypeFor[json.RawMessage](), t.Kind() == reflect.Interface:
		return object{}
	case t.Kind() == reflect.Struct, t.Kind() == reflect.String && t.PkgPath() != "":
		return d.named(t)
	}
	switch t.Kind() {
	case reflect.Pointer:
		return nullable(d.schema(t.Elem()))
	case reflect.String:
		return object{"type": "string"}
	case reflect.Bool:
		return object{"type": "boolean"}
	case reflect.Float32, reflect.Float64:
		return object{"type": "number"}
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return object{"type": "integer"}
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return object{"type": "integer", "minimum": 0}
	case reflect.Slice:
		return object{"type": "array", "items": d.schema(t.Elem())}
	case reflect.Array:
		return object{"type": "array", "items": d.schema(t.Elem()), "minItems": t.Len(), "maxItems": t.Len()}
	case reflect.Map:
		return object{"type": "object", "additionalProperties": d.schema(t.Elem())}
	default:
		d.t.Fatalf("no schema for %s", t)
		return nil
	}
}

func nullable(s object) object {
	if kind, ok := s["type"].(string); ok {
		s["type"] = []string{kind, "null"}
		return s
	}
	return object{"anyOf": []object{s, {"type": "null"}}}
}

// named puts a type's schema among the components and returns a reference to it.
func (d *describer) named(t reflect.Type) object {
	name := t.Name()
	reference := object{"$ref": "#/components/schemas/" + name}
	if other, ok := d.types[name]; ok {
		if other != t {
			d.t.Fatalf("two types are called %s: %s and %s", name, t.PkgPath(), other.PkgPath())
		}
		return reference
	}
	if d.types == nil {
		d.types = map[string]reflect.Type{}
	}
	d.types[name] = t
	var out object
	if t.Kind() == reflect.String {
		out = object{"type": "string"}
		if values := d.source(t).values[name]; values != nil {
			out["enum"] = values
		}
	} else {
		properties, required := object{}, []string{}
		d.fields(t, properties, &required)
		out = object{"type": "object", "properties": properties}
		if len(required) > 0 {
			out["required"] = required
		}
		if d.strict {
			out["additionalProperties"] = false
		}
	}
	if text := d.source(t).comments[name]; text != "" {
		out["description"] = text
	}
	d.schemas[name] = out
	return reference
}

// fields adds those of a struct, as encoding/json writes them. A list of a type of another package may be null.
func (d *describer) fields(t reflect.Type, properties object, required *[]string) {
	for f := range t.Fields() {
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.Anonymous && name == "" {
			d.fields(f.Type, properties, required)
			continue
		}
		if !f.IsExported() || name == "-" {
			continue
		}
		name = cmp.Or(name, f.Name)
		kind, optional := f.Type, strings.Contains(options, "omitempty")
		if optional && kind.Kind() == reflect.Pointer {
			kind = kind.Elem()
		}
		one := d.schema(kind)
		if kind.Kind() == reflect.Slice && !optional && path.Base(t.PkgPath()) != "api" {
			one = nullable(one)
		}
		if text := d.source(t).comments[t.Name()+"."+f.Name]; text != "" {
			one["description"] = text
		}
		properties[name] = one
		if !optional {
			*required = append(*required, name)
		}
	}
}

// source reads the package of a type.
func (d *describer) source(t reflect.Type) *source {
	if s := d.sources[t.PkgPath()]; s != nil {
		return s
	}
	if d.sources == nil {
		d.sources = map[string]*source{}
	}
	s := &source{comments: map[string]string{}, values: map[string][]string{}}
	d.sources[t.PkgPath()] = s
	dir := filepath.Join("../..", strings.TrimPrefix(t.PkgPath(), "github.com/avgpipe/avgpipe/"))
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil || len(files) == 0 {
		d.t.Fatalf("no source of %s in %s: %v", t, dir, err)
	}
	for _, file := range files {
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments)
		if err != nil {
			d.t.Fatal(err)
		}
		for _, declaration := range parsed.Decls {
			if g, ok := declaration.(*ast.GenDecl); ok {
				s.read(g)
			}
		}
	}
	return s
}

func (s *source) read(g *ast.GenDecl) {
	for _, spec := range g.Specs {
		switch spec := spec.(type) {
		case *ast.TypeSpec:
			s.comments[spec.Name.Name] = comment(cmp.Or(spec.Doc, g.Doc))
			if fields, ok := spec.Type.(*ast.StructType); ok {
				for _, f := range fields.Fields.List {
					for _, name := range f.Names {
						s.comments[spec.Name.Name+"."+name.Name] = comment(cmp.Or(f.Doc, f.Comment))
					}
				}
			}
		case *ast.ValueSpec:
			kind, ok := spec.Type.(*ast.Ident)
			if !ok || len(spec.Values) != 1 {
				continue
			}
			if literal, ok := spec.Values[0].(*ast.BasicLit); ok && literal.Kind == token.STRING {
				if value, err := strconv.Unquote(literal.Value); err == nil {
					s.values[kind.Name] = append(s.values[kind.Name], value)
				}
			}
		}
	}
}

// comment is a comment's text on one line.
func comment(c *ast.CommentGroup) string { return strings.Join(strings.Fields(c.Text()), " ") }

// TestEveryRouteIsDescribedAndNoOther.
func TestEveryRouteIsDescribedAndNoOther(t *testing.T) {
	var document struct {
		Paths map[string]map[string]struct {
			OperationID string `json:"operationId"`
		} `json:"paths"`
	}
	if err := json.Unmarshal(Description, &document); err != nil {
		t.Fatal(err)
	}
	described := map[string]string{}
	for p, operations := range document.Paths {
		for method, o := range operations {
			described[strings.ToUpper(method)+" "+p] = o.OperationID
		}
	}
	served := map[string]string{}
	for _, r := range (&handler{backend: &private{}, log: zap.NewNop()}).routes() {
		served[r.method+" "+r.path] = r.name
	}
	if !maps.Equal(described, served) {
		t.Errorf("described are %v\nserved are %v", described, served)
	}
	names := slices.Sorted(maps.Values(served))
	if all := len(names); len(slices.Compact(names)) != all {
		t.Errorf("two operations have one name: %v", names)
	}
}
