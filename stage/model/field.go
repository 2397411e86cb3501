package model

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"reflect"
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
	target  any          // *int, *float64, *bool, *string, *map[string]any or *[]int
	check   func() error // a *FieldError where the target holds what it must not; nil: any value will do
	null    bool         // null is 0; else it is the default
}

// field is a Field that has its default.
func field[T any](name, kind string, target *T, value T, doc string, holds func(T) bool, allowed string, near func() string) Field {
	*target = value
	return Field{Name: name, Type: kind, Doc: doc, target: target, check: func() error {
		if holds(*target) {
			return nil
		}
		return &FieldError{Field: name, Found: *target, Allowed: allowed, Nearest: near()}
	}}
}

// integer is a field with bounds. The upper ones lie well beyond any published model; they keep sizes in bytes within 63 bits.
func integer(name string, target *int, value, least, most int, doc string) Field {
	return field(name, "integer", target, value, doc, func(v int) bool { return least <= v && v <= most },
		fmt.Sprintf("an integer from %d to %d", least, most), func() string { return strconv.Itoa(min(max(*target, least), most)) })
}

// bound says which numbers a field holds.
type bound struct {
	allowed string
	holds   func(float64) bool
}

var (
	above0    = bound{"a number from 1e-30 to 1e30", func(v float64) bool { return v >= 1e-30 && v <= 1e30 }} // it is one in f32 as well
	atLeast0  = bound{"a number from 0 to 1000", func(v float64) bool { return v >= 0 && v <= 1000 }}
	share     = bound{"a number above 0, at most 1", func(v float64) bool { return v > 0 && v <= 1 }}
	rate      = bound{"a number of at least 0 and below 1", func(v float64) bool { return v >= 0 && v < 1 }}
	rateOrOff = bound{rate.allowed + ", or -1", func(v float64) bool { return v == -1 || rate.holds(v) }}
)

func number(name string, target *float64, value float64, b bound, doc string) Field {
	near := strings.Replace(fmt.Sprint(max(value, 0)), "e-0", "e-", 1)
	return field(name, "number", target, value, doc, b.holds, b.allowed, func() string { return near })
}

func flag(name string, target *bool, value bool, doc string) Field {
	*target = value
	return Field{Name: name, Type: "boolean", Doc: doc, target: target}
}

// word is a field that holds one of some words.
func word(name string, target *string, value string, words []string, doc string) Field {
	return field(name, "string", target, value, doc, func(v string) bool { return slices.Contains(words, v) }, oneOf(words), func() string {
		return cmp.Or(nearest.Word(*target, words), value)
	})
}

// list is a field that holds integers from 1 to most.
func list(name string, target *[]int, value []int, shortest, most int, doc string) Field {
	outside := func(v int) bool { return v < 1 || v > most }
	return field(name, "list of integers", target, value, doc,
		func(v []int) bool { return len(v) >= shortest && !slices.ContainsFunc(v, outside) },
		fmt.Sprintf("a list of at least %d integers from 1 to %d", shortest, most), func() string { return "" })
}

// value is what the field holds: of its target's type, nil where that is an empty mapping.
func (f Field) value() any {
	switch t := f.target.(type) {
	case *[]int:
		return slices.Clone(*t)
	case *map[string]any:
		if *t == nil {
			return nil
		}
	}
	return reflect.ValueOf(f.target).Elem().Interface()
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

func oneOf(names []string) string {
	if len(names) == 1 {
		return strconv.Quote(names[0])
	}
	return "one of " + strings.Join(names, ", ")
}

// settings is a family's config.
type settings interface {
	// fields sets all fields to their defaults and describes them.
	fields() []Field
	// build gives the model what follows from the config.
	build(m *Model)
}

// validator checks fields, each of which holds what it may, against each other, and derives what is derived.
type validator interface{ validate() error }

// read sets a config, which holds the defaults, from what is given, and validates it.
func read(c settings, fields []Field, given map[string]any) error {
	if err := decode(fields, given); err != nil {
		return err
	}
	for _, f := range fields {
		if f.check != nil {
			if err := f.check(); err != nil {
				return err
			}
		}
	}
	if v, ok := c.(validator); ok {
		return v.validate()
	}
	return nil
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
		if f := fields[i]; config[name] != nil {
			if err := set(f, config[name]); err != nil {
				return bounded(f, err)
			}
		} else if f.null {
			*f.target.(*int) = 0 //nolint:errcheck // an integer
		}
	}
	return nil
}

// bounded says of a value of the wrong type what the field's own bounds are, where they are broken: an integer beyond all was set to the last.
func bounded(f Field, err error) error {
	if f.check == nil {
		return err
	}
	wrong, ok := errors.AsType[*FieldError](err)
	if bound, broken := errors.AsType[*FieldError](f.check()); ok && broken {
		wrong.Allowed, wrong.Nearest = bound.Allowed, bound.Nearest
	}
	return err
}

func set(f Field, value any) error {
	wrong := &FieldError{Field: f.Name, Found: value}
	switch t := f.target.(type) {
	case *int:
		v, ok := asNumber(value)
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
		v, ok := asNumber(value)
		if !ok || math.IsNaN(v) || math.IsInf(v, 0) {
			if wrong.Allowed = "a number"; ok {
				wrong.Nearest = fmt.Sprint(*t)
			}
			return wrong
		}
		*t = v
	case *bool:
		return assign(t, value, wrong, "true or false")
	case *string:
		return assign(t, single(value), wrong, "a string")
	case *map[string]any:
		return assign(t, value, wrong, "a mapping of keys to values")
	case *[]int:
		return assign(t, integers(value), wrong, fmt.Sprintf("a list of integers of at most %d", math.MaxInt32))
	default:
		panic(fmt.Sprintf("model: field %s has a target of type %T", f.Name, f.target))
	}
	return nil
}

// assign sets a target to a value, which is of the target's type or wrong.
func assign[T any](target *T, value any, wrong *FieldError, allowed string) error {
	v, ok := value.(T)
	if !ok {
		wrong.Allowed = allowed
		return wrong
	}
	*target = v
	return nil
}

// integers is the []int of what JSON and YAML decoders give for a list of integers, and any other value itself.
func integers(value any) any {
	if list, ok := value.([]int); ok {
		return slices.Clone(list)
	}
	list, ok := value.([]any)
	out := make([]int, len(list))
	for i, each := range list {
		v, isNumber := asNumber(each)
		ok = ok && isNumber && v == math.Trunc(v) && math.Abs(v) <= math.MaxInt32
		out[i] = int(v)
	}
	if !ok {
		return value
	}
	return out
}

// single is the element of a list of one, as in Hugging Face's architectures, and any other value itself.
func single(value any) any {
	if list := reflect.ValueOf(value); list.Kind() == reflect.Slice && list.Len() == 1 {
		return list.Index(0).Interface()
	}
	return value
}

// asNumber accepts what JSON and YAML decoders give.
func asNumber(value any) (float64, bool) {
	if number, ok := value.(interface{ Float64() (float64, error) }); ok { // json.Number
		f, err := number.Float64()
		return f, err == nil
	}
	switch v := reflect.ValueOf(value); {
	case v.CanInt():
		return float64(v.Int()), true
	case v.CanUint():
		return float64(v.Uint()), true
	case v.CanFloat():
		return v.Float(), true
	}
	return 0, false
}
