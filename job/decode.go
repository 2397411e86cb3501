package job

import (
	"cmp"
	"fmt"
	"math"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/avgpipe/avgpipe/internal/nearest"
	"github.com/avgpipe/avgpipe/internal/strictyaml"
)

// decoder fills a Job from a document and notes there what does not fit: each value against the rule of its field.
type decoder struct{ *strictyaml.Document }

// mismatch reports a value that its field cannot hold.
func (d decoder) mismatch(f field, n *strictyaml.Node, nearest string) {
	found := n.Found()
	if x, ok := n.Number(); ok && math.IsInf(x, 0) && f.rule.closest(x) == "" {
		found += ", which is beyond a number of 64 bits"
	}
	d.wants(f, found, nearest)
}

func (d decoder) wants(f field, found, nearest string) {
	d.Refuse(f.key, nearest, "%s wants %s; found %s", f.key, f.wants(), found)
}

// section decodes a mapping into a struct: unknown and missing keys are problems, absent ones keep their defaults.
func (d decoder) section(n *strictyaml.Node, v reflect.Value, key string) {
	known := map[string]bool{}
	for _, f := range members(key) {
		known[last(f.key)] = true
		if value := n.Child(last(f.key)); value != nil {
			d.value(value, v.Field(f.index[len(f.index)-1]), f)
		} else if f.rule.required {
			wants := f.wants()
			if f.kind.Kind() == reflect.Struct {
				wants += ": " + strings.Join(children(f.key), ", ")
			}
			d.Refuse(f.key, "", "missing key %q: %s", f.key, wants)
		}
	}
	for _, e := range n.Entries {
		if !known[e.Name] {
			d.UnknownKey(strictyaml.Join(key, e.Name), elsewhere(key, e.Name), children(key))
		}
	}
}

// elsewhere is the key that is meant by one that its section does not have: where nothing near it is allowed there, what has that name
// elsewhere, or has it in other programs.
func elsewhere(section, name string) string {
	near := ""
	for _, f := range fields {
		if slices.Contains(f.rule.also, name) || near == "" && last(f.key) == name {
			near = f.key
		}
	}
	if nearest.Word(name, children(section)) != "" {
		return ""
	}
	return near
}

// value decodes one value into a field.
func (d decoder) value(n *strictyaml.Node, v reflect.Value, f field) {
	kind := f.kind.Kind()
	switch {
	case n.Kind == strictyaml.Refused: // it is reported already
	case kind == reflect.Slice:
		d.list(n, v, f)
	case kind != reflect.Struct && kind != reflect.Map:
		x, near, ok := f.read(n)
		switch {
		case ok:
			v.Set(x)
		case kind == reflect.String && n.Kind == strictyaml.Text && n.Scalar == "" && f.rule.oneof == nil && f.rule.pattern == nil:
			d.Refuse(f.key, "", "%s is empty; remove it or write %s", f.key, f.wants()) // it would mean the same as nothing, by accident
		default:
			d.mismatch(f, n, near)
		}
	case n.Kind != strictyaml.Mapping:
		d.mismatch(f, n, "")
	case kind == reflect.Struct:
		d.section(n, v, f.key)
	default:
		v.Set(reflect.ValueOf(d.free(n)))
	}
}

// read reads one value, or finds the nearest that the field can hold.
func (f field) read(n *strictyaml.Node) (x reflect.Value, near string, ok bool) {
	switch kind := f.kind.Kind(); {
	case f.kind == typeDuration:
		t, near, ok := duration(n)
		return reflect.ValueOf(t), near, ok
	case kind == reflect.Bool:
		return reflect.ValueOf(n.Scalar == "true"), truth(n), n.Kind == strictyaml.Bool
	case kind == reflect.String:
		return f.readText(n)
	case (f.kind == typeCount || f.kind == typeFactor) && n.Kind == strictyaml.Text:
		near = cmp.Or(nearest.Word(n.Scalar, []string{"auto"}), unquoted(n))
		return reflect.Zero(f.kind), near, n.Scalar == "auto"
	}
	return f.readNumber(n)
}

func (f field) readText(n *strictyaml.Node) (x reflect.Value, near string, ok bool) {
	if n.Kind != strictyaml.Text {
		if n.Plain() {
			near = strconv.Quote(n.Scalar)
		}
		if f.rule.oneof != nil {
			near = f.rule.near(n.Scalar)
		}
		return x, near, false
	}
	x = reflect.ValueOf(n.Scalar)
	switch r := f.rule; {
	case r.oneof != nil && !slices.Contains(r.oneof, n.Scalar):
		return x, r.near(n.Scalar), false
	case r.pattern != nil:
		return x, "", r.pattern.MatchString(n.Scalar)
	}
	return x, "", n.Scalar != ""
}

// readNumber reads a number; near one that is out of bounds is the bound, near one that should be whole the whole one.
func (f field) readNumber(n *strictyaml.Node) (x reflect.Value, near string, ok bool) {
	number, ok := n.Number()
	if !ok {
		return x, unquoted(n), false
	}
	near = f.rule.closest(number)
	if near == "" && number < 0 && f.rule.holds(-number) {
		near = n.Scalar[1:]
	}
	if near == "0" && f.rule.zero != "" {
		near = "0, which stands for " + f.rule.zero
	}
	switch {
	case f.kind.Kind() == reflect.Uint64:
		if u, ok := n.Natural(); ok {
			return reflect.ValueOf(u), "", true
		}
		switch {
		case number >= math.MaxUint64:
			return x, strconv.FormatUint(math.MaxUint64, 10), false
		case number > 0:
			return x, strconv.FormatUint(uint64(math.Round(number)), 10), false
		}
		return x, "0", false
	case !f.rule.holds(number):
		return x, near, false
	case f.kind.Kind() == reflect.Float64:
		return reflect.ValueOf(number).Convert(f.kind), "", true
	}
	if i, ok := n.Whole(); ok {
		return reflect.ValueOf(i).Convert(f.kind), "", true
	}
	if whole := max(math.Round(number), math.Ceil(cmp.Or(f.rule.min, 0))); math.Abs(whole) < 1<<53 {
		near = strconv.FormatFloat(whole, 'f', -1, 64)
	}
	return x, near, false
}

func duration(n *strictyaml.Node) (t time.Duration, near string, ok bool) {
	if x, number := n.Number(); number {
		return 0, n.Scalar + "s", x == 0
	}
	if n.Kind != strictyaml.Text {
		return 0, "", false
	}
	if n.Scalar != "" && durations.MatchString(n.Scalar) {
		t, err := time.ParseDuration(n.Scalar)
		return t, "", err == nil
	}
	text := unitNames.ReplaceAllString(strings.ToLower(strings.TrimPrefix(n.Scalar, "-")), "$1$2$3")
	t, err := time.ParseDuration(text)
	switch {
	case err != nil:
		return 0, "", false
	case !durations.MatchString(text):
		text = number(float64(t)/float64(time.Millisecond)) + "ms"
	}
	return 0, text, false
}

// unitNames are units that are written out, and blanks.
var unitNames = regexp.MustCompile(`\s+|(h)(?:ou)?rs?|(m)in(?:ute)?s?|(s)ec(?:ond)?s?`)

// list decodes a list, or a value that stands for a list of equal ones.
func (d decoder) list(n *strictyaml.Node, v reflect.Value, f field) {
	element, r := f.element(), f.rule
	if r.each != "" && n.Plain() {
		one := reflect.MakeSlice(f.kind, 1, 1)
		x, near, ok := element.read(n)
		if alone := n.Kind == strictyaml.Text && n.Scalar != "" && n.Scalar == r.alone; alone {
			x, ok = reflect.ValueOf(r.alone), true
		} else if !ok && r.alone != "" && near == "" {
			near = nearest.Word(n.Scalar, []string{r.alone})
		}
		if !ok {
			d.mismatch(f, n, near)
			return
		}
		one.Index(0).Set(x)
		v.Set(one)
		return
	}
	if n.Kind != strictyaml.List {
		near := ""
		if _, _, holds := element.read(n); holds && r.maxItems == 0 && n.Plain() {
			near = "[" + n.Scalar + "]"
		} else if _, isNumber := n.Number(); isNumber && r.number != "" {
			near = r.number + ": " + n.Scalar
		}
		d.mismatch(f, n, near)
		return
	}
	if len(n.Items) < r.minItems || r.maxItems > 0 && len(n.Items) > r.maxItems {
		d.wants(f, fmt.Sprintf("a list of %d", len(n.Items)), "")
		return
	}
	out := reflect.MakeSlice(f.kind, len(n.Items), len(n.Items))
	for i, item := range n.Items {
		element.key = item.Key
		switch stands := r.alone != "" && item.Kind == strictyaml.Text && item.Scalar == r.alone; {
		case stands && len(n.Items) == 1:
			out.Index(0).SetString(r.alone)
		case stands:
			d.Refuse(item.Key, f.key+": "+r.alone, "%s is %s, which stands alone, for all of the list", item.Key, r.alone)
		default:
			d.value(item, out.Index(i), element)
		}
	}
	v.Set(out)
}

// free decodes what only somebody else knows the keys of: mappings as map[string]any, lists as []any, whole numbers as
// int64 (float64 when they do not fit), numbers as float64, and bool, string and nil.
func (d decoder) free(n *strictyaml.Node) any {
	switch n.Kind {
	case strictyaml.Mapping:
		m := make(map[string]any, len(n.Entries))
		for _, e := range n.Entries {
			m[e.Name] = d.free(e.Value)
		}
		return m
	case strictyaml.List:
		l := make([]any, len(n.Items))
		for i, item := range n.Items {
			l[i] = d.free(item)
		}
		return l
	case strictyaml.Bool:
		return n.Scalar == "true"
	case strictyaml.Int, strictyaml.Float:
		if i, err := strconv.ParseInt(n.Scalar, 0, 64); err == nil {
			return i
		}
		x, _ := n.Number()
		if math.IsInf(x, 0) || math.IsNaN(x) {
			d.Refuse(n.Key, "", "%s wants a finite number; found %s", n.Key, n.Scalar)
		}
		return x
	case strictyaml.Text:
		return n.Scalar
	case strictyaml.Null, strictyaml.Refused:
	}
	return nil
}

// unquoted returns the number in a text.
func unquoted(n *strictyaml.Node) string {
	if n.Kind == strictyaml.Text && strictyaml.IsNumber(n.Scalar) {
		return n.Scalar
	}
	return ""
}

// truth returns the truth value that older YAML read in a text, or that a number stands for in other languages.
func truth(n *strictyaml.Node) string {
	switch strings.ToLower(n.Scalar) {
	case "yes", "y", "on", "true", "1":
		return "true"
	case "no", "n", "off", "false", "0":
		return "false"
	}
	return ""
}

// near is the allowed word that is meant by another.
func (r rule) near(word string) string {
	return cmp.Or(r.means[strings.ToLower(word)], nearest.Word(word, r.oneof))
}

// members lists the fields right below a section.
func members(section string) []field { return sections[section] }

// sections are the fields below each section, in order.
var sections = func() map[string][]field {
	all := map[string][]field{}
	for _, f := range fields {
		section := strictyaml.Parent(f.key)
		all[section] = append(all[section], f)
	}
	return all
}()
