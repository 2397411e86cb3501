package job

import (
	"fmt"
	"math"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/avgpipe/avgpipe/internal/strictyaml"
)

// rule is what the tags of a field say.
type rule struct {
	required, path, optional bool
	each                     string  // "stage" or "device": what a list has an entry for; "" for other lists
	min, max, above, below   float64 // NaN when there is no such bound
	minItems, maxItems       int     // of a list; maxItems 0: no bound
	oneof, of                []string
	alone                    string            // a word that is no entry of a list, and stands for all of it; "" for none
	also                     []string          // what other programs call the key
	means                    map[string]string // of words that other programs have, the one of oneof that is meant
	pattern                  *regexp.Regexp
	form                     string // pattern in words
	fallback                 string // what an absent key means, in YAML; "" for the type's zero value
	zero                     string // what 0 stands for, where it is not the smallest value
	number                   string // the key that is meant by a number, where a list is wanted
}

// field is one key of the job file.
type field struct {
	key   string // "train.batch"
	index []int  // in Job, for reflection
	kind  reflect.Type
	rule  rule
}

var (
	typeCount    = reflect.TypeFor[Count]()
	typeFactor   = reflect.TypeFor[Factor]()
	typeDuration = reflect.TypeFor[time.Duration]()
)

// durationPattern is what a duration may look like: hours, minutes, seconds and milliseconds in that order, each at most
// once. It keeps within an int64 of nanoseconds whatever the digits are.
const durationPattern = `^(([0-9]{1,6}(\.[0-9]{1,9})?h)?([0-9]{1,6}(\.[0-9]{1,9})?m)?([0-9]{1,9}(\.[0-9]{1,9})?s)?([0-9]{1,9}(\.[0-9]{1,9})?ms)?)$`

var durations = regexp.MustCompile(durationPattern)

// ruleOf reads the tags of a field. A malformed tag is a mistake in this package, not in a job file.
func ruleOf(f reflect.StructField) rule {
	none := math.NaN()
	r := rule{min: none, max: none, above: none, below: none, form: f.Tag.Get("form"), fallback: f.Tag.Get("default"), zero: f.Tag.Get("zero")}
	if p := f.Tag.Get("pattern"); p != "" {
		r.pattern = regexp.MustCompile(p)
	}
	for word := range strings.FieldsSeq(f.Tag.Get("also")) {
		if theirs, ours, value := strings.Cut(word, "="); value {
			if r.means == nil {
				r.means = map[string]string{}
			}
			r.means[theirs] = ours
		} else {
			r.also = append(r.also, word)
		}
	}
	for word := range strings.FieldsSeq(f.Tag.Get("rule")) {
		name, value, _ := strings.Cut(word, "=")
		switch name {
		case "required":
			r.required = true
		case "path":
			r.path = true
		case "optional":
			r.optional = true
		case "each":
			r.each = value
		case "min":
			r.min = bound(f, value)
		case "max":
			r.max = bound(f, value)
		case "above":
			r.above = bound(f, value)
		case "below":
			r.below = bound(f, value)
		case "items":
			n, open := strings.CutSuffix(value, "+")
			r.minItems = int(bound(f, n))
			if !open {
				r.maxItems = r.minItems
			}
		case "oneof":
			r.oneof = strings.Split(value, "|")
		case "of":
			r.of = strings.Split(value, "|")
		case "alone":
			r.alone = value
		case "number":
			r.number = value
		default:
			panic(fmt.Sprintf("job: field %s: unknown rule %q", f.Name, word))
		}
	}
	return r
}

func bound(f reflect.StructField, text string) float64 {
	v, err := strconv.ParseFloat(text, 64)
	if err != nil {
		panic(fmt.Sprintf("job: field %s: bound: %v", f.Name, err))
	}
	return v
}

// fieldsOf lists the fields of a struct of the job file in order, sections before what is in them.
func fieldsOf(t reflect.Type, key string, index []int) []field {
	var all []field
	for i := range t.NumField() {
		f := t.Field(i)
		x := field{
			key: strictyaml.Join(key, f.Tag.Get("yaml")), index: append(slices.Clone(index), i), kind: f.Type, rule: ruleOf(f),
		}
		all = append(all, x)
		if f.Type.Kind() == reflect.Struct {
			all = append(all, fieldsOf(f.Type, x.key, x.index)...)
		}
	}
	return all
}

// fields is every key of the job file.
var fields = fieldsOf(reflect.TypeFor[Job](), "", nil)

// children lists the keys of a section, the last part of each.
func children(section string) []string {
	var names []string
	for _, f := range members(section) {
		names = append(names, last(f.key))
	}
	return names
}

// last returns the last part of a key.
func last(key string) string { return key[strings.LastIndexByte(key, '.')+1:] }

// wants says in words what a field may hold: "a whole number from 1 to 1024, or auto".
func (f field) wants() string {
	switch f.kind {
	case typeCount:
		return "a whole number" + f.rule.interval() + ", or auto"
	case typeFactor:
		return "a number" + f.rule.interval() + ", or auto"
	case typeDuration:
		return "a duration in h, m, s and ms, such as 90s, 5m or 1h30m, or 0"
	}
	switch f.kind.Kind() {
	case reflect.Int:
		if f.rule.min == f.rule.max {
			return "the number " + number(f.rule.min)
		}
		return "a whole number" + f.rule.interval()
	case reflect.Uint64:
		return "a whole number from 0 to 18446744073709551615"
	case reflect.Float64:
		return "a number" + f.rule.interval()
	case reflect.Bool:
		return "true or false"
	case reflect.Slice:
		return f.wantsList()
	case reflect.Map, reflect.Struct:
		return "a mapping of keys to values"
	default:
		return f.wantsText()
	}
}

// element is an entry of a list, or the value that stands for all of them: it is held to the same rule.
func (f field) element() field { return field{key: f.key, kind: f.kind.Elem(), rule: f.rule} }

func (f field) wantsText() string {
	switch {
	case f.rule.oneof != nil:
		return oneOf(f.rule.oneof)
	case f.rule.pattern != nil:
		return f.rule.form
	case f.rule.path:
		return "a path"
	}
	return "text"
}

func (f field) wantsList() string {
	if f.rule.each != "" {
		text := f.element().wants() + ", or a list with one of them for each " + f.rule.each
		if f.rule.alone != "" {
			text += ", or " + f.rule.alone
		}
		return text
	}
	things := "numbers" + f.rule.interval()
	if f.kind.Elem().Kind() == reflect.String {
		things = "text"
		if f.rule.path {
			things = "paths"
		}
	}
	switch {
	case f.rule.maxItems > 0:
		return fmt.Sprintf("a list of %d %s", f.rule.maxItems, things)
	case f.rule.minItems > 0:
		return fmt.Sprintf("a list of %s, at least %d", things, f.rule.minItems)
	}
	return "a list of " + things
}

// interval says in words which numbers are within the bounds.
func (r rule) interval() string {
	low, high := "", ""
	switch {
	case !math.IsNaN(r.min) && !math.IsNaN(r.max):
		return " from " + number(r.min) + " to " + number(r.max)
	case !math.IsNaN(r.min):
		low = " of at least " + number(r.min)
	case !math.IsNaN(r.above):
		low = " above " + number(r.above)
	}
	switch {
	case !math.IsNaN(r.max):
		high = " of at most " + number(r.max)
	case !math.IsNaN(r.below):
		high = " below " + number(r.below)
	}
	if low != "" && high != "" {
		return low + " and" + high
	}
	return low + high
}

// holds reports whether a number is within the bounds. NaN never is.
func (r rule) holds(x float64) bool {
	return !math.IsNaN(x) && !math.IsInf(x, 0) &&
		!(x < r.min) && !(x > r.max) && !(x <= r.above) && !(x >= r.below)
}

// closest returns the inclusive bound that a number outside the bounds lies beyond, "" when there is none.
func (r rule) closest(x float64) string {
	switch {
	case x < r.min:
		return number(r.min)
	case x > r.max:
		return number(r.max)
	}
	return ""
}

// number prints a number as a person would write it: whole ones without an exponent.
func number(x float64) string {
	if x == math.Trunc(x) && math.Abs(x) < 1e15 {
		return strconv.FormatFloat(x, 'f', -1, 64)
	}
	return strconv.FormatFloat(x, 'g', -1, 64)
}

// oneOf lists the allowed words.
func oneOf(words []string) string {
	if len(words) == 1 {
		return strconv.Quote(words[0]) + ", the only one so far"
	}
	return "one of " + strings.Join(words, ", ")
}

// Key is a key of the job file that holds a value.
type Key struct {
	Name  string   // "train.batch"
	Holds string   // what it may hold, for people
	Words []string // the words that it may hold, when there are only these
}

// Keys lists them in the order of the documentation.
func Keys() []Key {
	var all []Key
	for _, f := range fields {
		if f.kind.Kind() != reflect.Struct {
			all = append(all, Key{Name: f.key, Holds: f.wants(), Words: f.rule.oneof})
		}
	}
	return all
}
