package model

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/avgpipe/avgpipe/internal/nearest"
)

// Field describes one field of a family's config.
type Field struct {
	Name    string
	Type    string // "integer", "number", "boolean", "string", "mapping" or "list of integers"
	Default any    // nil: derived, see Doc
	Doc     string
	target  any // *int, *float64, *bool, *string, *map[string]any or *[]int
}

// FieldError reports a config field that is unknown or holds what it must not.
type FieldError struct {
	Field   string // as the config spells it; "family" for the family itself
	Unknown bool   // there is no such field
	Found   any    // the value
	Allowed string // what is allowed, for people: "an integer of at least 1"
	Nearest string // the nearest valid field or value; may be empty
}

func (e *FieldError) Error() string {
	var b strings.Builder
	if e.Unknown {
		fmt.Fprintf(&b, "unknown field %q; allowed are %s", e.Field, e.Allowed)
	} else {
		fmt.Fprintf(&b, "%s is %v; allowed is %s", e.Field, show(e.Found), e.Allowed)
	}
	if e.Nearest != "" {
		fmt.Fprintf(&b, "; did you mean %s?", e.Nearest)
	}
	return b.String()
}

func show(v any) string {
	if s, ok := v.(string); ok {
		return fmt.Sprintf("%q", s)
	}
	return fmt.Sprint(v)
}

func oneOf(names []string) string { return "one of " + strings.Join(names, ", ") }

// settings is a family's config.
type settings interface {
	fields() []Field
	validate() error
}

// read sets a config, which holds the defaults, from what is given, and validates it.
func read(c settings, given map[string]any) error {
	err := decode(c.fields(), given)
	if err == nil {
		return c.validate()
	}
	// The field's own bounds, where they are what is broken: one beyond every integer was set to the last.
	wrong, ok := errors.AsType[*FieldError](err)
	if bound, bounded := errors.AsType[*FieldError](c.validate()); ok && bounded && bound.Field == wrong.Field {
		wrong.Allowed, wrong.Nearest = bound.Allowed, bound.Nearest
	}
	return err
}

// decode sets the targets of fields from config. A nil value keeps the default, as in Hugging Face's files.
func decode(fields []Field, config map[string]any) error {
	for _, name := range slices.Sorted(maps.Keys(config)) {
		i := slices.IndexFunc(fields, func(f Field) bool { return f.Name == name })
		if i < 0 {
			names := make([]string, len(fields))
			for j, f := range fields {
				names[j] = f.Name
			}
			return &FieldError{Field: name, Unknown: true, Allowed: strings.Join(names, ", "), Nearest: nearest.Word(name, names)}
		}
		if config[name] == nil {
			continue
		}
		if err := set(fields[i], config[name]); err != nil {
			return err
		}
	}
	return nil
}

func set(f Field, value any) error {
	wrong := &FieldError{Field: f.Name, Found: value}
	switch t := f.target.(type) {
	case *int:
		v, ok := number(value)
		if !ok || v != math.Trunc(v) || math.Abs(v) > math.MaxInt32 {
			wrong.Allowed = "an integer"
			switch {
			case ok && math.IsNaN(v):
				wrong.Nearest = strconv.Itoa(*t)
			case ok && math.Abs(v) > math.MaxInt32:
				wrong.Allowed = fmt.Sprintf("an integer of at most %d", math.MaxInt32)
				*t = int(math.Copysign(math.MaxInt32, v))
			}
			return wrong
		}
		*t = int(v)
	case *float64:
		v, ok := number(value)
		if !ok || math.IsNaN(v) || math.IsInf(v, 0) {
			if wrong.Allowed = "a number"; ok {
				wrong.Nearest = fmt.Sprint(*t)
			}
			return wrong
		}
		*t = v
	case *bool:
		v, ok := value.(bool)
		if !ok {
			wrong.Allowed = "true or false"
			return wrong
		}
		*t = v
	case *string:
		v, ok := single(value).(string)
		if !ok {
			wrong.Allowed = "a string"
			return wrong
		}
		*t = v
	case *map[string]any:
		v, ok := value.(map[string]any)
		if !ok {
			wrong.Allowed = "a mapping of keys to values"
			return wrong
		}
		*t = v
	case *[]int:
		v, ok := integers(value)
		if !ok {
			wrong.Allowed = fmt.Sprintf("a list of integers of at most %d", math.MaxInt32)
			return wrong
		}
		*t = v
	default:
		panic(fmt.Sprintf("model: field %s has a target of type %T", f.Name, f.target))
	}
	return nil
}

// integers accepts what JSON and YAML decoders give for a list.
func integers(value any) ([]int, bool) {
	if list, ok := value.([]int); ok {
		return slices.Clone(list), true
	}
	list, ok := value.([]any)
	out := make([]int, len(list))
	for i, each := range list {
		v, isNumber := number(each)
		ok = ok && isNumber && v == math.Trunc(v) && math.Abs(v) <= math.MaxInt32
		out[i] = int(v)
	}
	return out, ok
}

// single is the element of a list of one, as in Hugging Face's architectures, and any other value itself.
func single(value any) any {
	switch list := value.(type) {
	case []any:
		if len(list) == 1 {
			return list[0]
		}
	case []string:
		if len(list) == 1 {
			return list[0]
		}
	}
	return value
}

// number accepts what JSON and YAML decoders give.
func number(value any) (float64, bool) {
	switch v := value.(type) {
	case int:
		return float64(v), true
	case int64:
		return float64(v), true
	case uint64:
		return float64(v), true
	case float32:
		return float64(v), true
	case float64:
		return v, true
	case interface{ Float64() (float64, error) }: // json.Number
		f, err := v.Float64()
		return f, err == nil
	}
	return 0, false
}

// describe fills Type and Default from the targets, which hold the defaults.
func describe(fields []Field) []Field {
	for i, f := range fields {
		switch t := f.target.(type) {
		case *int:
			fields[i].Type, fields[i].Default = "integer", *t
		case *float64:
			fields[i].Type, fields[i].Default = "number", *t
		case *bool:
			fields[i].Type, fields[i].Default = "boolean", *t
		case *string:
			fields[i].Type, fields[i].Default = "string", *t
		case *map[string]any:
			if fields[i].Type = "mapping"; *t != nil {
				fields[i].Default = *t
			}
		case *[]int:
			fields[i].Type, fields[i].Default = "list of integers", slices.Clone(*t)
		}
	}
	return fields
}
