package model

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/avgpipe/avgpipe/internal/nearest"
	"github.com/avgpipe/avgpipe/stage/layer"
)

// Training says what of a model is trained. The fields of a *FieldError about it are keys of the job file.
type Training struct {
	// Only are patterns over the names of parameters: all that none of them matches are frozen. Nil: none is. A pattern matches a name as
	// a whole, or what follows any dot of it, as path.Match does; a star also stands for dots.
	Only []string
}

// Train is the model with the parameters frozen that are not trained.
func (m *Model) Train(t Training) (*Model, error) {
	if t.Only == nil {
		return m, nil
	}
	trained := map[string]bool{}
	for i, pattern := range t.Only {
		matched, err := matches(fmt.Sprintf("train.only[%d]", i), pattern, m.trainable(), "parameters")
		if err != nil {
			return nil, err
		}
		for _, name := range matched {
			trained[name] = true
		}
	}
	originals := map[string]string{}
	for _, p := range m.Params() {
		originals[p.Name] = p.Name
		if p.TiedTo != "" {
			originals[p.Name] = p.TiedTo
			trained[p.TiedTo] = trained[p.TiedTo] || trained[p.Name]
		}
	}
	out := *m
	out.Layers = make([]layer.Layer, len(m.Layers))
	for i, l := range m.Layers {
		out.Layers[i] = layer.Freeze(l, func(p layer.Param) bool { return trained[originals[p.Name]] })
	}
	return &out, nil
}

// trainable are the names of the parameters, those of tied copies included.
func (m *Model) trainable() (names []string) {
	for _, p := range m.Params() {
		if p.Running == 0 {
			names = append(names, p.Name)
		}
	}
	return names
}

// matches are the names of some things, parameters or layers, that the pattern in a field matches; none is an error.
func matches(field, pattern string, names []string, things string) (matched []string, err error) {
	for _, name := range names {
		found := false
		for rest, more := name, true; more && !found; _, rest, more = strings.Cut(rest, ".") {
			if found, err = path.Match(pattern, rest); err != nil {
				return nil, &FieldError{Field: field, Found: pattern, Allowed: "a pattern of *, ?, [a-z] and plain characters"}
			}
		}
		if found {
			matched = append(matched, name)
		}
	}
	if matched == nil {
		return nil, &FieldError{
			Field: field, Found: pattern, Nearest: closest(pattern, names),
			Allowed: fmt.Sprintf("a pattern that matches a name of the model's %d %s", len(names), things),
		}
	}
	return matched, nil
}

// closest is a pattern that matches, near one that does not.
func closest(pattern string, names []string) string {
	if slices.ContainsFunc(names, func(name string) bool { return strings.Contains("."+name, "."+pattern+".") }) {
		return pattern + ".*"
	}
	return nearest.Word(pattern, names)
}
