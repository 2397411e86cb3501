package job

import (
	"fmt"
	"math"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/avgpipe/avgpipe/internal/nearest"
)

// decoder fills a Job from a tree and collects what does not fit.
type decoder struct {
	positions *Positions
	problems  Problems
	refused   map[string]bool // keys whose value is reported already, by its form
}

func (d *decoder) problem(key, nearest, format string, args ...any) {
	d.problems = append(d.problems, d.positions.Problem(key, fmt.Sprintf(format, args...), nearest))
}

// mismatch reports a value of the wrong type.
func (d *decoder) mismatch(f field, n *node, nearest string) {
	d.problem(f.key, nearest, "%s wants %s; found %s", f.key, f.wants(), n.found())
}

// locate notes where every key of a tree stands.
func (p *Positions) locate(n *node, key string) {
	for _, e := range n.entries {
		k := join(key, e.name)
		p.keys[k] = e.at
		p.values[k] = e.value.at
		if e.value.kind == mapping {
			p.values[k] = e.at
		}
		p.locate(e.value, k)
	}
	for i, item := range n.items {
		k := fmt.Sprintf("%s[%d]", key, i)
		p.values[k] = item.at
		p.locate(item, k)
	}
}

// section decodes a mapping into a struct: unknown and missing keys are problems, absent ones keep their defaults.
func (d *decoder) section(n *node, v reflect.Value, key string) {
	t := v.Type()
	known := map[string]bool{}
	for i := range t.NumField() {
		f := field{kind: t.Field(i).Type, rule: ruleOf(t.Field(i))}
		name := t.Field(i).Tag.Get("yaml")
		f.key = join(key, name)
		known[name] = true
		if at := n.find(name); at >= 0 {
			d.value(n.entries[at].value, v.Field(i), f)
			continue
		}
		if f.rule.required {
			d.missing(f)
		}
	}
	for _, e := range n.entries {
		if !known[e.name] {
			d.unknown(key, e.name)
		}
	}
}

func (d *decoder) missing(f field) {
	wants := f.wants()
	if f.kind.Kind() == reflect.Struct {
		wants += ": " + strings.Join(children(f.key), ", ")
	}
	d.problem(f.key, "", "missing key %q: %s", f.key, wants)
}

// unknown reports a key that no field has. When nothing near it is allowed there, a key of that name elsewhere is it.
func (d *decoder) unknown(section, name string) {
	p := d.positions.UnknownKey(join(section, name), children(section))
	if p.Nearest == "" {
		for _, f := range fields {
			if last(f.key) == name {
				p.Nearest = f.key
				break
			}
		}
	}
	d.problems = append(d.problems, p)
}

// value decodes one value into a field.
func (d *decoder) value(n *node, v reflect.Value, f field) {
	switch {
	case n.kind == refused:
		d.refused[f.key] = true
		return
	case f.kind == typeCount:
		d.count(n, v, f)
		return
	case f.kind == typeFactor:
		d.factor(n, v, f)
		return
	case f.kind == typeDuration:
		d.duration(n, v, f)
		return
	}
	switch f.kind.Kind() {
	case reflect.Struct:
		if n.kind != mapping {
			d.mismatch(f, n, "")
			return
		}
		d.section(n, v, f.key)
	case reflect.Slice:
		d.list(n, v, f)
	case reflect.Map:
		if n.kind != mapping {
			d.mismatch(f, n, "")
			return
		}
		v.Set(reflect.ValueOf(d.free(n, f.key)))
	case reflect.String:
		if n.kind != text {
			d.mismatch(f, n, quoted(n))
			return
		}
		if (f.rule.path || f.rule.optional) && n.scalar == "" { // absent and empty would mean the same, and one of them by accident
			d.problem(f.key, "", "%s is empty; remove it or write %s", f.key, f.wants())
			return
		}
		v.SetString(n.scalar)
	case reflect.Bool:
		if n.kind != boolean {
			d.mismatch(f, n, truth(n))
			return
		}
		v.SetBool(n.scalar == "true")
	default:
		d.number(n, v, f)
	}
}

// number decodes a whole number or a number.
func (d *decoder) number(n *node, v reflect.Value, f field) {
	switch f.kind.Kind() {
	case reflect.Int:
		if i, ok := n.whole(); ok {
			v.SetInt(i)
			return
		}
	case reflect.Uint64:
		if u, ok := n.natural(); ok {
			v.SetUint(u)
			return
		}
	default:
		if x, ok := n.number(); ok {
			v.SetFloat(x)
			return
		}
	}
	d.mismatch(f, n, unquoted(n))
}

func (d *decoder) count(n *node, v reflect.Value, f field) {
	if n.kind == text && n.scalar == "auto" {
		v.SetInt(int64(Auto))
		return
	}
	i, ok := n.whole()
	switch {
	case !ok && n.kind == text:
		d.mismatch(f, n, firstOf(nearest.Word(n.scalar, []string{"auto"}), unquoted(n)))
	case !ok:
		d.mismatch(f, n, "")
	case !f.rule.holds(float64(i)): // here, since 0 in a Count means auto
		d.mismatch(f, n, f.rule.closest(float64(i)))
	default:
		v.SetInt(i)
	}
}

func (d *decoder) factor(n *node, v reflect.Value, f field) {
	if n.kind == text && n.scalar == "auto" {
		v.SetFloat(float64(AutoFactor))
		return
	}
	x, ok := n.number()
	switch {
	case !ok && n.kind == text:
		d.mismatch(f, n, firstOf(nearest.Word(n.scalar, []string{"auto"}), unquoted(n)))
	case !ok:
		d.mismatch(f, n, "")
	case !f.rule.holds(x): // here, since 0 in a Factor means auto
		d.mismatch(f, n, f.rule.closest(x))
	default:
		v.SetFloat(x)
	}
}

func (d *decoder) duration(n *node, v reflect.Value, f field) {
	if n.kind == integer || n.kind == float {
		if x, ok := n.number(); ok && x == 0 {
			v.SetInt(0)
			return
		}
		d.mismatch(f, n, n.scalar+"s")
		return
	}
	if n.kind != text || n.scalar == "" || !durations.MatchString(n.scalar) {
		d.mismatch(f, n, "")
		return
	}
	t, err := time.ParseDuration(n.scalar)
	if err != nil {
		d.mismatch(f, n, "")
		return
	}
	v.SetInt(int64(t))
}

func (d *decoder) list(n *node, v reflect.Value, f field) {
	if f.rule.each != "" && (n.kind == text || n.kind == integer || n.kind == float) {
		d.alone(n, v, f)
		return
	}
	if n.kind != list {
		near := ""
		if f.rule.maxItems == 0 && (n.kind == text || n.kind == integer || n.kind == float) {
			near = "[" + n.scalar + "]"
		}
		d.mismatch(f, n, near)
		return
	}
	out := reflect.MakeSlice(f.kind, len(n.items), len(n.items))
	for i, item := range n.items {
		entry := field{key: fmt.Sprintf("%s[%d]", f.key, i), kind: f.kind.Elem(), rule: rule{path: f.rule.path}}
		d.value(item, out.Index(i), entry)
	}
	v.Set(out)
}

// alone decodes a value that stands for a list of equal ones. A value of the wrong type is reported as what the list may be.
func (d *decoder) alone(n *node, v reflect.Value, f field) {
	before := len(d.problems)
	one := reflect.MakeSlice(f.kind, 1, 1)
	d.value(n, one.Index(0), f.element())
	if len(d.problems) == before {
		v.Set(one)
		return
	}
	near := d.problems[before].Nearest
	d.problems = d.problems[:before]
	d.mismatch(f, n, near)
}

// free decodes what only somebody else knows the keys of: mappings as map[string]any, lists as []any, whole numbers as
// int64 (float64 when they do not fit), numbers as float64, and bool, string and nil.
func (d *decoder) free(n *node, key string) any {
	switch n.kind {
	case mapping:
		m := make(map[string]any, len(n.entries))
		for _, e := range n.entries {
			m[e.name] = d.free(e.value, join(key, e.name))
		}
		return m
	case list:
		l := make([]any, len(n.items))
		for i, item := range n.items {
			l[i] = d.free(item, fmt.Sprintf("%s[%d]", key, i))
		}
		return l
	case boolean:
		return n.scalar == "true"
	case integer, float:
		if i, err := strconv.ParseInt(n.scalar, 0, 64); err == nil {
			return i
		}
		if x, ok := n.number(); ok {
			return x
		}
		d.problem(key, "", "%s wants a finite number; found %s", key, n.scalar)
		return nil
	case text:
		return n.scalar
	case null, refused:
	}
	return nil
}

// whole returns the value of a node that is a whole number, written as one or as 1e4.
func (n *node) whole() (int64, bool) {
	if n.kind == integer {
		if i, err := strconv.ParseInt(n.scalar, 0, 64); err == nil {
			return i, true
		}
	}
	x, ok := n.number()
	if !ok || x != math.Trunc(x) || math.Abs(x) > 1<<53 {
		return 0, false
	}
	return int64(x), true
}

// natural returns the value of a node that is a whole number of at least 0.
func (n *node) natural() (uint64, bool) {
	if n.kind == integer {
		if u, err := strconv.ParseUint(strings.TrimPrefix(n.scalar, "+"), 0, 64); err == nil {
			return u, true
		}
	}
	i, ok := n.whole()
	return uint64(max(i, 0)), ok && i >= 0
}

// number returns the value of a node that is a finite number.
func (n *node) number() (float64, bool) {
	if n.kind != integer && n.kind != float {
		return 0, false
	}
	if u, err := strconv.ParseUint(n.scalar, 0, 64); err == nil { // 0x10 is no float to strconv
		return float64(u), true
	}
	x, err := strconv.ParseFloat(n.scalar, 64)
	return x, err == nil && !math.IsInf(x, 0) && !math.IsNaN(x)
}

// quoted returns what a number or truth value looks like as text.
func quoted(n *node) string {
	if n.kind == integer || n.kind == float || n.kind == boolean {
		return strconv.Quote(n.scalar)
	}
	return ""
}

// unquoted returns the number in a text.
func unquoted(n *node) string {
	if n.kind == text && (integers.MatchString(n.scalar) || floats.MatchString(n.scalar)) {
		return n.scalar
	}
	return ""
}

// truth returns the truth value that older YAML read in a text.
func truth(n *node) string {
	switch strings.ToLower(n.found()) {
	case `text "yes"`, `text "y"`, `text "on"`, `text "true"`, "1":
		return "true"
	case `text "no"`, `text "n"`, `text "off"`, `text "false"`, "0":
		return "false"
	}
	return ""
}

func firstOf(a, b string) string {
	if a != "" {
		return a
	}
	return b
}
