package strictyaml

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
)

// decoder fills a struct from a document and notes there what does not fit: each value against the rule of its field.
type decoder struct {
	*Document
	root reflect.Value
}

// Decode fills a struct, which holds the defaults, from the document. Unknown and missing keys and values that their fields cannot hold
// become problems. It reports whether there is anything to look at further: a mapping, and not an empty one where keys are required.
func (d *Document) Decode(into any) bool {
	required := func(f Field) bool { return f.Required }
	switch {
	case d.Root == nil:
		return false
	case len(d.Root.Entries) == 0 && slices.ContainsFunc(d.schema.Fields, required):
		d.Refuse("", "", "the file is empty; %s is a mapping of keys to values: %s", d.schema.Name, strings.Join(d.schema.names(""), ", "))
		return false
	}
	decoder{d, reflect.ValueOf(into).Elem()}.section(d.Root, "")
	return true
}

// SetDefaults fills a struct from its `default` tags, which are read like the values of a file.
func (s *Schema) SetDefaults(into any) {
	for _, f := range s.Fields {
		if f.Default == "" {
			continue
		}
		d := (&Schema{Name: "a default", MaxBytes: 1 << 10}).Read(f.Key, []byte("a: "+f.Default))
		if d.Root != nil {
			decoder{Document: d}.value(d.Root.Child("a"), f.In(into), f)
		}
		if err := d.Err(); err != nil {
			panic("strictyaml: the default of a field does not fit: " + err.Error())
		}
	}
}

// mismatch reports a value that its field cannot hold.
func (d decoder) mismatch(f Field, n *Node, nearest string) {
	found := n.Found()
	if x, ok := n.Number(); ok && math.IsInf(x, 0) && !dotted.MatchString(n.Scalar) {
		found += ", which is beyond a number of 64 bits"
	}
	if n.Kind == Null && !f.Required {
		found += "; remove the line for the default"
	}
	d.wants(f, found, nearest)
}

func (d decoder) wants(f Field, found, nearest string) {
	d.Refuse(f.Key, nearest, "%s wants %s; found %s", f.Key, d.allows(f), found)
}

// allows says what a field holds: of a section its keys as well.
func (d decoder) allows(f Field) string {
	if f.Section() {
		return f.Wants() + ": " + strings.Join(d.schema.names(f.Key), ", ")
	}
	return f.Wants()
}

// section decodes a mapping into the fields below a key: unknown and missing keys are problems, absent ones keep their defaults.
func (d decoder) section(n *Node, key string) {
	names := d.schema.names(key)
	for _, f := range d.schema.Members(key) {
		if value := n.Child(f.Name()); value != nil {
			d.value(value, d.root.FieldByIndex(f.Index), f)
		} else if f.Required {
			d.Refuse(f.Key, "", "missing key %q: %s", f.Key, d.allows(f))
		}
	}
	for _, e := range n.Entries {
		if !slices.Contains(names, e.Name) {
			d.UnknownKey(key, e.Name, d.elsewhere(e.Name, names), names)
		}
	}
}

// elsewhere is the key that is meant by one that its section does not have: where nothing near it is allowed there, what has that name
// elsewhere, or has it in other programs.
func (d decoder) elsewhere(name string, allowed []string) string {
	near := ""
	for _, f := range d.schema.Fields {
		if slices.Contains(f.Also, name) || near == "" && f.Name() == name {
			near = f.Key
		}
	}
	if nearest.Word(name, allowed) != "" {
		return ""
	}
	return near
}

// value decodes one value into a field.
func (d decoder) value(n *Node, v reflect.Value, f Field) {
	kind := f.Type.Kind()
	switch {
	case n.Kind == Refused: // it is reported already
	case kind == reflect.Slice:
		d.list(n, v, f)
	case !f.Section() && kind != reflect.Map:
		x, near, ok := f.read(n)
		switch {
		case ok:
			v.Set(x)
		case kind == reflect.String && n.Kind == Text && n.Scalar == "" && f.OneOf == nil && f.Pattern == nil:
			d.Refuse(f.Key, "", "%s is empty; remove it or write %s", f.Key, f.Wants()) // it would mean the same as nothing, by accident
		default:
			d.mismatch(f, n, near)
		}
	case n.Kind != Mapping:
		d.mismatch(f, n, "")
	case kind == reflect.Struct:
		d.section(n, f.Key)
	case f.Type == typeJSON:
		v.Set(reflect.ValueOf(d.exact(n)))
	default:
		v.Set(reflect.ValueOf(d.free(n, f.Key)))
	}
}

// read reads one value, or finds the nearest that the field can hold.
func (f *Field) read(n *Node) (x reflect.Value, near string, ok bool) {
	switch {
	case f.Word == "" || n.Kind != Text:
		return f.readPlain(n)
	case n.Scalar == f.Word && !math.IsNaN(f.Stands):
		return reflect.ValueOf(f.Stands).Convert(f.Type), "", true
	case n.Scalar == f.Word:
		return reflect.Zero(f.Type), "", true
	}
	x, near, ok = f.readPlain(n)
	return x, cmp.Or(nearest.Word(n.Scalar, []string{f.Word}), near), ok
}

func (f *Field) readPlain(n *Node) (x reflect.Value, near string, ok bool) {
	switch kind := f.Type.Kind(); {
	case f.reads():
		v := reflect.New(f.Type)
		return v.Elem(), "", n.Plain() && v.Interface().(Value).Set(n.Scalar) //nolint:forcetypeassert,errcheck // It implements that.
	case f.Type == typeDuration:
		t, near, ok := f.duration(n)
		if ok && float64(t) < f.Min {
			near, ok = f.least(), false
		}
		return reflect.ValueOf(t), near, ok
	case kind == reflect.Bool:
		return reflect.ValueOf(n.Scalar == "true"), truth(n), n.Kind == Bool
	case kind == reflect.String:
		return f.readText(n)
	}
	return f.readNumber(n)
}

func (f *Field) readText(n *Node) (x reflect.Value, near string, ok bool) {
	if n.Kind != Text {
		if n.Plain() {
			near = strconv.Quote(n.Scalar)
		}
		if f.OneOf != nil {
			near = f.near(n.Scalar)
		}
		return x, near, false
	}
	x = reflect.ValueOf(n.Scalar)
	switch {
	case f.OneOf != nil && !slices.Contains(f.OneOf, n.Scalar):
		return x, f.near(n.Scalar), false
	case f.Pattern != nil:
		return x, "", f.Pattern.MatchString(n.Scalar)
	}
	return x, "", n.Scalar != ""
}

// readNumber reads a number; near one that is out of bounds is the bound, near one that should be whole the whole one.
func (f *Field) readNumber(n *Node) (x reflect.Value, near string, ok bool) {
	number, ok := n.Number()
	if !ok {
		return x, cmp.Or(unquoted(n), f.size(n.Scalar)), false
	}
	if math.IsNaN(number) {
		return x, "", false // it is near to nothing
	}
	near = f.closest(number)
	if number < 0 && !f.holds(0) && f.holds(-number) {
		near = n.Scalar[1:]
	}
	if near == "0" && f.Zero != "" {
		near = "0, which stands for " + f.Zero
	}
	switch {
	case f.Type.Kind() == reflect.Uint64:
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
	case !f.holds(number):
		return x, near, false
	case f.Type.Kind() == reflect.Float64:
		return reflect.ValueOf(number).Convert(f.Type), "", true
	}
	if i, ok := n.Whole(); ok {
		return reflect.ValueOf(i).Convert(f.Type), "", true
	}
	if whole := max(math.Round(number), math.Ceil(cmp.Or(f.Min, 0))); math.Abs(whole) < 1<<53 {
		near = strconv.FormatFloat(whole, 'f', -1, 64)
	}
	return x, near, false
}

// sizes are numbers of bytes that people write with a unit; numbers here have none.
var sizes = regexp.MustCompile(`^(\d+(?:\.\d+)?)\s*([kKMGT])(i?)[bB]?$`)

// size is the number that a size with a unit means, where the field can hold it; else "".
func (f *Field) size(text string) string {
	parts := sizes.FindStringSubmatch(text)
	if parts == nil {
		return ""
	}
	base, power := 1000.0, strings.Index("kmgt", strings.ToLower(parts[2]))+1
	if parts[3] != "" {
		base = 1024
	}
	x, err := strconv.ParseFloat(parts[1], 64)
	if x *= math.Pow(base, float64(power)); err != nil || !f.holds(x) {
		return ""
	}
	return strconv.FormatFloat(x, 'f', -1, 64)
}

func (f *Field) duration(n *Node) (t time.Duration, near string, ok bool) {
	if x, number := n.Number(); number {
		if near = Number(math.Abs(x)) + "s"; !durations.MatchString(near) {
			near = f.Default
		}
		return 0, near, x == 0
	}
	if n.Kind != Text {
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
		text = Number(float64(t)/float64(time.Millisecond)) + "ms"
	}
	return 0, text, false
}

// unitNames are units that are written out, and blanks.
var unitNames = regexp.MustCompile(`\s+|(h)(?:ou)?rs?|(m)in(?:ute)?s?|(s)ec(?:ond)?s?`)

// list decodes a list, or a value that stands for a list of equal ones.
func (d decoder) list(n *Node, v reflect.Value, f Field) {
	element := f.element()
	if f.Each != "" && n.Plain() {
		one := reflect.MakeSlice(f.Type, 1, 1)
		x, near, ok := element.read(n)
		if alone := n.Kind == Text && n.Scalar != "" && n.Scalar == f.Alone; alone {
			x, ok = reflect.ValueOf(f.Alone), true
		} else if !ok && f.Alone != "" && near == "" {
			near = nearest.Word(n.Scalar, []string{f.Alone})
		}
		if !ok {
			d.mismatch(f, n, near)
			return
		}
		one.Index(0).Set(x)
		v.Set(one)
		return
	}
	if n.Kind != List {
		near := ""
		if _, _, holds := element.read(n); holds && f.MaxItems == 0 && n.Plain() {
			near = "[" + n.Scalar + "]"
		} else if _, isNumber := n.Number(); isNumber && f.Number != "" {
			near = f.Number + ": " + n.Scalar
		}
		d.mismatch(f, n, near)
		return
	}
	if len(n.Items) < f.MinItems || f.MaxItems > 0 && len(n.Items) > f.MaxItems {
		d.wants(f, fmt.Sprintf("a list of %d", len(n.Items)), "")
		return
	}
	out := reflect.MakeSlice(f.Type, len(n.Items), len(n.Items))
	for i, item := range n.Items {
		element.Key = item.Key
		switch stands := f.Alone != "" && item.Kind == Text && item.Scalar == f.Alone; {
		case stands && len(n.Items) == 1:
			out.Index(0).SetString(f.Alone)
		case stands:
			d.Refuse(item.Key, f.Key+": "+f.Alone, "%s is %s, which stands alone, for all of the list", item.Key, f.Alone)
		default:
			d.value(item, out.Index(i), element)
		}
	}
	v.Set(out)
}

// free decodes what only somebody else knows the keys of: mappings as map[string]any, lists as []any, whole numbers as
// int64 (float64 when they do not fit), numbers as float64, and bool, string and nil. A number right below the key of the field may be
// none or infinite: who knows its key knows what is nearest to it.
func (d decoder) free(n *Node, field string) any {
	switch n.Kind {
	case Mapping:
		m := make(map[string]any, len(n.Entries))
		for _, e := range n.Entries {
			m[e.Name] = d.free(e.Value, field)
		}
		return m
	case List:
		l := make([]any, len(n.Items))
		for i, item := range n.Items {
			l[i] = d.free(item, field)
		}
		return l
	case Bool:
		return n.Scalar == "true"
	case Int, Float:
		if i, err := strconv.ParseInt(n.Scalar, 0, 64); err == nil {
			return i
		}
		x, _ := n.Number()
		if (math.IsInf(x, 0) || math.IsNaN(x)) && Parent(n.Key) != field {
			d.Refuse(n.Key, "", "%s wants a finite number; found %s", n.Key, n.Scalar)
		}
		return x
	case Text:
		return n.Scalar
	case Null, Refused:
	}
	return nil
}

// unquoted returns the number in a text, without a comma behind it.
func unquoted(n *Node) string {
	if text := strings.TrimSuffix(n.Scalar, ","); n.Kind == Text && (integers.MatchString(text) || floats.MatchString(text)) {
		return text
	}
	return ""
}

// truth returns the truth value that older YAML read in a text, or that a number stands for in other languages.
func truth(n *Node) string {
	switch strings.ToLower(n.Scalar) {
	case "yes", "y", "on", "true", "1":
		return "true"
	case "no", "n", "off", "false", "0":
		return "false"
	}
	return ""
}

// near is the allowed word that is meant by another. A letter is near to any other.
func (r *Rule) near(word string) string {
	if len(word) < 2 {
		return ""
	}
	return cmp.Or(r.Means[strings.ToLower(word)], nearest.Word(word, r.OneOf))
}
