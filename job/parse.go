// Package job is the job file: its types, strict parsing, defaults, validation and documentation. The daemon
// and the command line both read job files through it, and neither needs a device for that. schema.json holds each field to its type and
// bounds, for editors and other programs; that micro-batches divide the batch and the like, only Parse knows.
//
//go:generate go test -run TestGeneratedFilesAreCurrent . -rewrite
package job

import (
	"fmt"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"

	"github.com/avgpipe/avgpipe/internal/strictyaml"
)

// Environment is what a job file may refer to. The zero value knows no variable and checks no name; internal/jobfile gives all of it.
type Environment struct {
	// Lookup finds the variables in paths, as os.LookupEnv does. Nil: none is set.
	Lookup func(name string) (string, bool)
	// Families and Schedules are the names that model.family and schedule may have. Nil: any.
	Families, Schedules []string
	// Methods are the names that averaging.method may have, each with the keys of averaging that are its own. Nil: any.
	Methods map[string][]string
	// Check, unless nil, notes what else is wrong with a job, so that all is said at once.
	Check func(*strictyaml.Document, *Job)
}

func (e Environment) lookup(name string) (string, bool) {
	if e.Lookup == nil {
		return "", false
	}
	return e.Lookup(name)
}

// CapBytes bounds a job file.
const CapBytes = 64 << 10

// schema is what a job file may have.
var schema = strictyaml.SchemaOf[Job]("a job file", CapBytes)

// Keys lists the keys of the job file in the order of the documentation, sections before what is in them.
func Keys() []strictyaml.Field { return schema.Fields }

// Parse reads a job file: source is its text, file its name for messages, and set the overrides (`train.steps=50`), which
// replace or add keys. The job has its defaults and expanded paths and is valid as far as the file alone can tell; whether
// its data exist and its layers suffice is found out later and reported through the document, which is returned even
// with an error. The error is nil or strictyaml.Problems: everything that is wrong, at once, but for text that is not YAML, where the
// first fault hides the rest.
func Parse(file string, source []byte, set []string, env Environment) (*Job, *strictyaml.Document, error) {
	d, j := schema.Read(file, source, set...), Default()
	if !d.Decode(j) {
		return nil, d, d.Err()
	}
	if !d.Has("name") {
		j.Name = nameOf(file)
	}
	c := &checker{d, j}
	j.eachPath(func(key, path string) string {
		expanded, err := expand(path, env.lookup)
		if err != nil {
			c.refuse(key, "", "%s: %v", key, err)
			return path
		}
		return expanded
	})
	c.check(env)
	if err := d.Err(); err != nil {
		return nil, d, err
	}
	return j, d, nil
}

// Default returns a job with the default of every field that has one. The required ones are empty.
func Default() *Job {
	j := &Job{}
	schema.SetDefaults(j)
	return j
}

// eachPath replaces every path of the job by what do makes of it.
func (j *Job) eachPath(do func(key, path string) string) {
	if path := j.PlanFile(); path != "" {
		j.Schedule = planFile + do("schedule", path)
	}
	for _, f := range schema.Fields {
		switch v := f.In(j); {
		case !f.Path:
		case v.Kind() == reflect.String:
			v.SetString(do(f.Key, v.String()))
		default:
			for i := range v.Len() {
				v.Index(i).SetString(do(strictyaml.Item(f.Key, i), v.Index(i).String()))
			}
		}
	}
}

// Absolute makes the job's relative paths start at a directory, that of the job file.
func (j *Job) Absolute(base string) {
	j.eachPath(func(key, path string) string {
		switch {
		case path == "" || filepath.IsAbs(path) || key == "data.tokenizer" && path == TokenizerBytes:
			return path
		case IsURL(path) && (strings.HasPrefix(key, "data.files[") || strings.HasPrefix(key, "data.validation[")):
			return path
		}
		return filepath.Join(base, path)
	})
}

// TokenizerBytes is the value of data.tokenizer that is no path.
const TokenizerBytes = "bytes"

var notInNames = regexp.MustCompile(`[^A-Za-z0-9._-]+`)

// nameOf derives a job's name from its file's.
func nameOf(file string) string {
	name := filepath.Base(file)
	name = strings.TrimSuffix(name, filepath.Ext(name))
	name = strings.TrimLeft(notInNames.ReplaceAllString(name, "-"), "._-")
	if name == "" {
		return "job"
	}
	return name[:min(len(name), 63)]
}

// expand replaces ~ at the start of a path by the home directory, ${NAME} by the variable and $$ by a dollar sign. The
// lookup reports a variable and whether it is set; an empty one counts as unset, since `${DIR}/**` would then mean the
// whole disk.
func expand(path string, lookup func(string) (string, bool)) (string, error) {
	if home, ok := strings.CutPrefix(path, "~"); ok {
		if home != "" && home[0] != '/' {
			return "", fmt.Errorf("another user's home directory (~%s) is not looked up; write the whole path", firstPart(home))
		}
		path = "${HOME}" + home
	}
	var out strings.Builder
	for {
		before, after, found := strings.Cut(path, "$")
		out.WriteString(before)
		if !found {
			return out.String(), nil
		}
		if rest, ok := strings.CutPrefix(after, "$"); ok {
			out.WriteByte('$')
			path = rest
			continue
		}
		name, rest, ok := strings.Cut(strings.TrimPrefix(after, "{"), "}")
		if !strings.HasPrefix(after, "{") || !ok || name == "" {
			return "", fmt.Errorf("`$` starts a variable; write ${NAME}, or $$ for a dollar sign")
		}
		value, set := lookup(name)
		if !set || value == "" {
			return "", fmt.Errorf("variable ${%s} is not set; set it in the environment or write the path out", name)
		}
		out.WriteString(value)
		path = rest
	}
}

func firstPart(path string) string {
	name, _, _ := strings.Cut(path, "/")
	return name
}
