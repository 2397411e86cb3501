package job

import (
	"bytes"
	"maps"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
)

// Environment is what a job file may refer to. The zero value knows no variable and checks no name, for tools that link
// neither models nor schedules; the daemon gives all of it.
type Environment struct {
	// Lookup finds the variables in paths, as os.LookupEnv does. Nil: none is set.
	Lookup func(name string) (string, bool)
	// Families, Schedules and Methods are the names that model.family, schedule and averaging.method may have. Nil: any.
	Families, Schedules, Methods []string
}

func (e Environment) lookup(name string) (string, bool) {
	if e.Lookup == nil {
		return "", false
	}
	return e.Lookup(name)
}

// Parse reads a job file: source is its text, file its name for messages, and set the overrides (`train.steps=50`), which
// replace or add keys. The job has its defaults and expanded paths and is valid as far as the file alone can tell; whether
// its data exist and its layers suffice is found out later and reported through the Positions, which are returned even
// with an error. The error is nil or Problems: everything that is wrong, at once, but for text that is not YAML, where the
// first fault hides the rest.
func Parse(file string, source []byte, set []string, env Environment) (*Job, *Positions, error) {
	source = bytes.TrimPrefix(source, []byte(byteOrderMark))
	p := &Positions{
		file: file, lines: splitLines(source), overrides: set, values: map[string]place{}, keys: map[string]place{},
	}
	root, faults := tree(source, set)
	d := decoder{positions: p, refused: map[string]bool{}}
	for _, f := range faults {
		d.problems = append(d.problems, p.at(f.at, f.key, f.message, f.nearest))
	}
	if root == nil {
		p.order(d.problems)
		return nil, p, d.problems.err()
	}
	p.locate(root, "")
	j := Default()
	d.section(root, reflect.ValueOf(j).Elem(), "")
	if !p.Has("name") {
		j.Name = nameOf(file)
	}
	d.expand(j, env)
	d.check(j, env)
	p.order(d.problems)
	if err := d.problems.err(); err != nil {
		return nil, p, err
	}
	return j, p, nil
}

// tree reads the file and applies the overrides. The root is nil when the text is not YAML or no mapping.
func tree(source []byte, set []string) (*node, []fault) {
	var b builder
	root := b.read(source)
	faults := b.faults
	if len(faults) > 0 && root == nil {
		return nil, faults
	}
	if root == nil {
		root = &node{kind: mapping, at: place{line: 1, column: 1}}
	}
	if root.kind != mapping {
		return nil, append(faults, fault{
			at:      root.at,
			message: "a job file is a mapping of keys to values: " + strings.Join(children(""), ", ") + "; found " + root.found(),
		})
	}
	for i, s := range set {
		faults = append(faults, override(root, i+1, s)...)
	}
	return root, faults
}

// Default returns a job with the default of every field that has one. The required ones are empty.
func Default() *Job {
	j := &Job{}
	setDefaults(reflect.ValueOf(j).Elem())
	return j
}

// setDefaults fills a struct from its `default` tags, which are read like the values of a file.
func setDefaults(v reflect.Value) {
	for i := range v.NumField() {
		t := v.Type().Field(i)
		if t.Type.Kind() == reflect.Struct {
			setDefaults(v.Field(i))
			continue
		}
		r := ruleOf(t)
		if r.fallback == "" {
			continue
		}
		var b builder
		d := decoder{}
		n := b.read([]byte(r.fallback))
		d.value(n, v.Field(i), field{key: t.Name, kind: t.Type, rule: r})
		if len(b.faults) > 0 || len(d.problems) > 0 {
			panic("job: field " + t.Name + ": default " + r.fallback + " does not fit")
		}
	}
}

// expand expands the paths.
func (d *decoder) expand(j *Job, env Environment) {
	paths := map[string]*string{"model.from": &j.Model.From, "output.dir": &j.Output.Dir, "data.tokenizer": &j.Data.Tokenizer}
	for i := range j.Data.Files {
		paths[item("data.files", i)] = &j.Data.Files[i]
	}
	for i := range j.Data.Validation {
		paths[item("data.validation", i)] = &j.Data.Validation[i]
	}
	if path := j.PlanFile(); path != "" {
		paths["schedule"] = &path
		defer func() { j.Schedule = planFile + path }()
	}
	for key, path := range paths {
		expanded, err := expand(*path, env.lookup)
		if err != nil {
			d.problem(key, "", "%s: %v", key, err)
			continue
		}
		*path = expanded
	}
}

// check adds what Validate finds, but for keys that already have a problem.
func (d *decoder) check(j *Job, env Environment) {
	bad := maps.Clone(d.refused)
	for _, p := range d.problems {
		bad[p.Key] = true
	}
	for _, f := range j.faults(env, d.positions.Has) {
		if !within(bad, f.key) {
			d.problems = append(d.problems, d.positions.Problem(f.key, f.message, f.nearest))
		}
	}
}

// within reports whether a key or one that encloses it is in the set.
func within(set map[string]bool, key string) bool {
	for ; key != ""; key = parent(key) {
		if set[key] {
			return true
		}
	}
	return false
}

// Absolute makes the job's relative paths start at a directory, that of the job file.
func (j *Job) Absolute(base string) {
	absolute := func(path string) string {
		if path == "" || filepath.IsAbs(path) {
			return path
		}
		return filepath.Join(base, path)
	}
	if path := j.PlanFile(); path != "" {
		j.Schedule = planFile + absolute(path)
	}
	j.Model.From = absolute(j.Model.From)
	j.Output.Dir = absolute(j.Output.Dir)
	for _, files := range [][]string{j.Data.Files, j.Data.Validation} {
		for i := range files {
			files[i] = absolute(files[i])
		}
	}
	if j.Data.Tokenizer != TokenizerBytes {
		j.Data.Tokenizer = absolute(j.Data.Tokenizer)
	}
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

// splitLines cuts text into lines without their ends; there is at least one.
func splitLines(source []byte) []string {
	lines := strings.Split(string(source), "\n")
	for i := range lines {
		lines[i] = strings.TrimSuffix(lines[i], "\r")
	}
	return lines
}
