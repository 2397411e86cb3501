package model

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/avgpipe/avgpipe/internal/nearest"
	"github.com/avgpipe/avgpipe/internal/words"
	"github.com/avgpipe/avgpipe/stage/layer"
)

// Training says what of a model is trained. The fields of a *FieldError about it are keys of the job file.
type Training struct {
	// Only are patterns over the names of parameters: all that none of them matches are frozen. Nil: none is. A pattern matches a name as
	// a whole, or what follows any dot of it, as path.Match does; a star also stands for dots.
	Only []string
	// LoRA adds adapters to linear layers and freezes everything else that Only does not name. Nil: none.
	LoRA *LoRA
}

// LoRA says which linear layers get an adapter (layer.Adapter).
type LoRA struct {
	Rank           int
	Alpha, Dropout float64
	Targets        []string // patterns over the names of linear layers, which match as those of Only do
}

// Train is the model with its adapters, and with the parameters frozen that are not trained.
func (m *Model) Train(t Training) (*Model, error) {
	if t.LoRA != nil {
		var err error
		if m, err = m.adapt(t.LoRA); err != nil {
			return nil, err
		}
	} else if t.Only == nil {
		return m, nil
	}
	trained := map[string]bool{}
	for i, pattern := range t.Only {
		matched, err := matches(fmt.Sprintf("train.only[%d]", i), pattern, m.trainable(), "parameter")
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
		out.Layers[i] = layer.Freeze(l, func(p layer.Param) bool { return p.Adapter || trained[originals[p.Name]] })
	}
	return &out, nil
}

// adapt is the model with adapters.
func (m *Model) adapt(c *LoRA) (*Model, error) {
	var names []string
	ties := map[string]string{}
	m.each(func(l layer.Linear) layer.Linear {
		names, ties[l.Path] = append(names, l.Path), l.TiedTo
		return l
	})
	targets := map[string]bool{}
	for i, pattern := range c.Targets {
		field := fmt.Sprintf("lora.targets[%d]", i)
		if names == nil {
			return nil, &FieldError{Field: field, Found: pattern, Allowed: "a model with linear layers that can have an adapter, as gpt2 or llama; this " + m.Family + " has none"}
		}
		matched, err := matches(field, pattern, names, "linear layer")
		if err != nil {
			return nil, err
		}
		for _, name := range matched {
			if tied := ties[name]; tied != "" {
				return nil, &FieldError{Field: field, Found: pattern, Allowed: fmt.Sprintf("a layer with a weight of its own; that of %s is %s, which an adapter would change too", name, tied)}
			}
			targets[name] = true
		}
	}
	adapter := &layer.Adapter{Rank: c.Rank, Scale: float32(c.Alpha / float64(c.Rank)), Rate: c.Dropout}
	out := *m
	out.adapted = nil
	out.Layers = m.each(func(l layer.Linear) layer.Linear {
		if targets[l.Path] {
			l.Adapter = adapter
			out.adapted = append(out.adapted, l)
		}
		return l
	})
	return &out, nil
}

// each is the model's layers with what do makes of each linear one that can have an adapter.
func (m *Model) each(do func(layer.Linear) layer.Linear) []layer.Layer {
	layers := make([]layer.Layer, len(m.Layers))
	for i, l := range m.Layers {
		layers[i] = layer.Adapt(l, do)
	}
	return layers
}

// Adapted are the linear layers that have an adapter.
func (m *Model) Adapted() []layer.Linear { return m.adapted }

// trainable are the names of the parameters, those of tied copies included.
func (m *Model) trainable() (names []string) {
	for _, p := range m.Params() {
		if p.Running == 0 {
			names = append(names, p.Name)
		}
	}
	return names
}

// matches are the names of some things, each a parameter or a layer, that the pattern in a field matches; none is an error.
func matches(field, pattern string, names []string, thing string) (matched []string, err error) {
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
			Allowed: "a pattern that matches a name of the model's " + words.Count(len(names), thing),
		}
	}
	return matched, nil
}

// closest is a pattern that matches, near one that does not.
func closest(pattern string, names []string) string {
	if slices.ContainsFunc(names, func(name string) bool { return strings.Contains("."+name, "."+pattern+".") }) {
		return pattern + ".*"
	}
	ends := slices.Clone(names)
	for _, name := range names {
		for _, rest, more := strings.Cut(name, "."); more; _, rest, more = strings.Cut(rest, ".") {
			ends = append(ends, rest)
		}
	}
	return nearest.Word(pattern, ends)
}
