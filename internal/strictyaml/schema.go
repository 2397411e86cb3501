package strictyaml

import (
	"fmt"
	"math"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Schema is a kind of file. Its keys are the fields of a struct, and the tags of a field say what its key holds: `yaml` is the key's name,
// `default` what an absent key means, and `rule` what a present one may hold:
//
//	required            the key must be there
//	min, max            inclusive bounds of a number, or of each number of a list; min of a duration as well
//	above, below        exclusive bounds
//	items=2, items=1+   how many entries a list has
//	oneof=a|b           the allowed words
//	word=auto           a word that stands for the zero value
//	stands=-1           of a number: what that word stands for in the place of 0, which is outside of the bounds
//	of=a|b              the values of another key with which it is read; the caller checks that
//	each=stage|device   of a list: an entry for each stage, or device, or a value alone that stands for all of them
//	alone=WORD          of such a list of words: one more word, which only a value alone may be
//	path                a path, which the caller expands
//	optional            a text or a number that may be absent, without a default
//	number=KEY          of a list of paths: whoever writes a number means that key
//
// `pattern` is what a text has to match, and `form` says so in words; `zero` says what 0 stands for where it is not the smallest value.
// `also` lists what other programs call the key, and THEIRS=OURS what they call a value: whoever writes that is shown ours.
// The keys of an embedded struct are the file's own. A field without a name is none of the file's.
type Schema struct {
	Name     string // with its article, for messages: "a job file"
	MaxBytes int    // nobody writes a longer one by hand, and the YAML parser's time grows with the square of some
	Fields   []Field

	sections map[string][]Field
}

// Field is a key of a file.
type Field struct {
	Key   string // "train.batch"
	Index []int  // in the struct, for reflection
	Type  reflect.Type
	Tag   reflect.StructTag
	Rule
}

// Rule is what the tags of a field say.
type Rule struct {
	Required, Path, Optional bool
	Each                     string  // "stage" or "device": what a list has an entry for; "" for other lists
	Min, Max, Above, Below   float64 // NaN when there is no such bound
	MinItems, MaxItems       int     // of a list; MaxItems 0: no bound
	OneOf, Of                []string
	Word                     string            // that stands for the zero value, or for Stands; "" for none
	Stands                   float64           // what Word stands for in the place of 0; NaN: 0
	Alone                    string            // a word that is no entry of a list, and stands for all of it; "" for none
	Also                     []string          // what other programs call the key
	Means                    map[string]string // of words that other programs have, the one of OneOf that is meant
	Pattern                  *regexp.Regexp
	Form                     string // Pattern in words
	Default                  string // what an absent key means, in YAML; "" for the type's zero value
	Zero                     string // what 0 stands for, where it is not the smallest value
	Number                   string // the key that is meant by a number, where a list is wanted
}

// Value is a type of fields that reads its own text.
type Value interface {
	Set(text string) bool // reports whether the text is one
	Wants() string        // says in words which are
}

// SchemaOf is the schema of files that are read into a T.
func SchemaOf[T any](name string, maxBytes int) *Schema {
	s := &Schema{Name: name, MaxBytes: maxBytes, Fields: fieldsOf(reflect.TypeFor[T](), "", nil), sections: map[string][]Field{}}
	for _, f := range s.Fields {
		section := Parent(f.Key)
		s.sections[section] = append(s.sections[section], f)
	}
	return s
}

// Members lists the fields right below a section, in order.
func (s *Schema) Members(section string) []Field { return s.sections[section] }

// names lists the keys of a section, the last part of each.
func (s *Schema) names(section string) []string {
	var names []string
	for _, f := range s.Members(section) {
		names = append(names, f.Name())
	}
	return names
}

// Name returns the last part of the key.
func (f *Field) Name() string { return f.Key[strings.LastIndexByte(f.Key, '.')+1:] }

// In returns the field of a struct, by a pointer to that.
func (f *Field) In(root any) reflect.Value { return reflect.ValueOf(root).Elem().FieldByIndex(f.Index) }

var (
	typeDuration = reflect.TypeFor[time.Duration]()
	typeValue    = reflect.TypeFor[Value]()
)

// DurationPattern is what a duration may look like: hours, minutes, seconds and milliseconds in that order, each at most
// once. It keeps within an int64 of nanoseconds whatever the digits are.
const DurationPattern = `^(([0-9]{1,6}(\.[0-9]{1,9})?h)?([0-9]{1,6}(\.[0-9]{1,9})?m)?([0-9]{1,9}(\.[0-9]{1,9})?s)?([0-9]{1,9}(\.[0-9]{1,9})?ms)?)$`

var durations = regexp.MustCompile(DurationPattern)

// fieldsOf lists the fields of a struct in order, sections before what is in them.
func fieldsOf(t reflect.Type, key string, index []int) []Field {
	var all []Field
	for i := range t.NumField() {
		f := t.Field(i)
		at, name := append(slices.Clone(index), i), f.Tag.Get("yaml")
		switch {
		case f.Anonymous:
			all = append(all, fieldsOf(f.Type, key, at)...)
		case name != "":
			one := Field{Key: Join(key, name), Index: at, Type: f.Type, Tag: f.Tag, Rule: ruleOf(f)}
			all = append(all, one)
			if one.Section() {
				all = append(all, fieldsOf(f.Type, one.Key, at)...)
			}
		}
	}
	return all
}

// Section reports whether the key holds keys of its own.
func (f *Field) Section() bool { return f.Type.Kind() == reflect.Struct && !f.reads() }

// reads reports whether the field's type reads its own text.
func (f *Field) reads() bool { return reflect.PointerTo(f.Type).Implements(typeValue) }

// ruleOf reads the tags of a field. A malformed tag is a mistake in this program, not in a file.
func ruleOf(f reflect.StructField) Rule {
	none := math.NaN()
	r := Rule{Min: none, Max: none, Above: none, Below: none, Stands: none, Form: f.Tag.Get("form"), Default: f.Tag.Get("default"), Zero: f.Tag.Get("zero")}
	if p := f.Tag.Get("pattern"); p != "" {
		r.Pattern = regexp.MustCompile(p)
	}
	for word := range strings.FieldsSeq(f.Tag.Get("also")) {
		if theirs, ours, value := strings.Cut(word, "="); value {
			if r.Means == nil {
				r.Means = map[string]string{}
			}
			r.Means[theirs] = ours
		} else {
			r.Also = append(r.Also, word)
		}
	}
	texts := map[string]*string{"each": &r.Each, "word": &r.Word, "alone": &r.Alone, "number": &r.Number}
	bounds := map[string]*float64{"min": &r.Min, "max": &r.Max, "above": &r.Above, "below": &r.Below, "stands": &r.Stands}
	lists := map[string]*[]string{"oneof": &r.OneOf, "of": &r.Of}
	switches := map[string]*bool{"required": &r.Required, "path": &r.Path, "optional": &r.Optional}
	for word := range strings.FieldsSeq(f.Tag.Get("rule")) {
		switch name, value, _ := strings.Cut(word, "="); {
		case texts[name] != nil:
			*texts[name] = value
		case bounds[name] != nil:
			*bounds[name] = bound(f, value)
		case lists[name] != nil:
			*lists[name] = strings.Split(value, "|")
		case switches[name] != nil:
			*switches[name] = true
		case name == "items":
			n, open := strings.CutSuffix(value, "+")
			r.MinItems = int(bound(f, n))
			if !open {
				r.MaxItems = r.MinItems
			}
		default:
			panic(fmt.Sprintf("strictyaml: field %s: unknown rule %q", f.Name, word))
		}
	}
	return r
}

// bound reads a bound. That of a duration is in nanoseconds.
func bound(f reflect.StructField, text string) float64 {
	v, err := strconv.ParseFloat(text, 64)
	if f.Type == typeDuration {
		var d time.Duration
		d, err = time.ParseDuration(text)
		v = float64(d)
	}
	if err != nil {
		panic(fmt.Sprintf("strictyaml: field %s: bound: %v", f.Name, err))
	}
	return v
}

// Wants says in words what a field may hold: "a whole number from 1 to 1024, or auto".
func (f *Field) Wants() string {
	if f.Word != "" {
		return f.wants() + ", or " + f.Word
	}
	return f.wants()
}

func (f *Field) wants() string {
	switch kind := f.Type.Kind(); {
	case f.reads():
		return reflect.New(f.Type).Interface().(Value).Wants() //nolint:forcetypeassert,errcheck // It implements that.
	case f.Type == typeDuration && f.Min > 0:
		return "a duration of at least " + f.least() + " in h, m, s and ms, such as 90s, 5m or 1h30m"
	case f.Type == typeDuration:
		return "a duration in h, m, s and ms, such as 90s, 5m or 1h30m, or 0"
	case kind == reflect.Int && f.Min == f.Max:
		return "the number " + Number(f.Min)
	case kind == reflect.Int || kind == reflect.Int64:
		return "a whole number" + f.interval()
	case kind == reflect.Uint64:
		return "a whole number from 0 to 18446744073709551615"
	case kind == reflect.Float64:
		return "a number" + f.interval()
	case kind == reflect.Bool:
		return "true or false"
	case kind == reflect.Slice:
		return f.wantsList()
	case kind == reflect.Map || kind == reflect.Struct:
		return "a mapping of keys to values"
	case f.OneOf != nil:
		return OneOf(f.OneOf)
	case f.Pattern != nil:
		return f.Form
	case f.Path:
		return "a path"
	}
	return "text"
}

// least is the shortest duration that a field may hold: "1m".
func (r *Rule) least() string { return strings.Replace(time.Duration(r.Min).String(), "m0s", "m", 1) }

// element is an entry of a list, or the value that stands for all of them: it is held to the same rule.
func (f *Field) element() Field { return Field{Key: f.Key, Type: f.Type.Elem(), Rule: f.Rule} }

func (f *Field) wantsList() string {
	if f.Each != "" {
		element := f.element()
		text := element.Wants() + ", or a list with one of them for each " + f.Each
		if f.Alone != "" {
			text += ", or " + f.Alone
		}
		return text
	}
	things := "numbers" + f.interval()
	if element := f.element(); element.reads() {
		things = element.Wants()
	} else if f.Type.Elem().Kind() == reflect.String {
		things = "text"
		if f.Path {
			things = "paths"
		}
	}
	switch {
	case f.MaxItems > 0:
		return fmt.Sprintf("a list of %d %s", f.MaxItems, things)
	case f.MinItems > 0:
		return fmt.Sprintf("a list of %s, at least %d", things, f.MinItems)
	}
	return "a list of " + things
}

// interval says in words which numbers are within the bounds.
func (r *Rule) interval() string {
	low, high := "", ""
	switch {
	case !math.IsNaN(r.Min) && !math.IsNaN(r.Max):
		return " from " + Number(r.Min) + " to " + Number(r.Max)
	case !math.IsNaN(r.Min):
		low = " of at least " + Number(r.Min)
	case !math.IsNaN(r.Above):
		low = " above " + Number(r.Above)
	}
	switch {
	case !math.IsNaN(r.Max):
		high = " of at most " + Number(r.Max)
	case !math.IsNaN(r.Below):
		high = " below " + Number(r.Below)
	}
	if low != "" && high != "" {
		return low + " and" + high
	}
	return low + high
}

// holds reports whether a number is within the bounds. NaN never is.
func (r *Rule) holds(x float64) bool {
	return !math.IsNaN(x) && !math.IsInf(x, 0) &&
		!(x < r.Min) && !(x > r.Max) && !(x <= r.Above) && !(x >= r.Below)
}

// closest returns the inclusive bound that a number outside the bounds lies beyond, "" when there is none. Where a number is not finite
// and no bound is near, it is the default, or another number that the field can hold.
func (r *Rule) closest(x float64) string {
	switch {
	case x < r.Min:
		return Number(r.Min)
	case x > r.Max:
		return Number(r.Max)
	case math.IsNaN(x) || math.IsInf(x, 0):
		for _, text := range []string{r.Default, "0", "0.001", "1"} {
			if v, err := strconv.ParseFloat(text, 64); err == nil && r.holds(v) {
				return text
			}
		}
	}
	return ""
}

// Number prints a number as a person would write it: whole ones without an exponent.
func Number(x float64) string {
	if x == math.Trunc(x) && math.Abs(x) < 1e15 {
		return strconv.FormatFloat(x, 'f', -1, 64)
	}
	return strconv.FormatFloat(x, 'g', -1, 64)
}

// OneOf lists the allowed words.
func OneOf(words []string) string {
	if len(words) == 1 {
		return strconv.Quote(words[0]) + ", the only one so far"
	}
	return "one of " + strings.Join(words, ", ")
}
