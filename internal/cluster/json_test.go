package cluster

import (
	"bytes"
	"encoding/json"
	"flag"
	"maps"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

var rewrite = flag.Bool("rewrite-golden", false, "write testdata/golden anew")

// fill sets every field of a value, however deep, to something that is not zero.
func fill(v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem())
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[time.Time]() {
			v.Set(reflect.ValueOf(time.Unix(1700000000, 0).UTC()))
			return
		}
		for _, field := range v.Fields() {
			fill(field)
		}
	case reflect.Slice:
		if v.Type() == reflect.TypeFor[json.RawMessage]() {
			v.SetBytes([]byte(`{"own":1}`))
			return
		}
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0))
	case reflect.Array:
		for i := range v.Len() {
			fill(v.Index(i))
		}
	case reflect.String:
		v.SetString("text")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int64:
		v.SetInt(7)
	case reflect.Uint8, reflect.Uint32, reflect.Uint64:
		v.SetUint(7)
	default:
		panic("a persisted field of kind " + v.Kind().String())
	}
}

// persisted are a value of each type that lies in the log or in a snapshot.
func persisted() []any {
	values := []any{&envelope{}, &stateBody{}}
	for _, kind := range slices.Sorted(maps.Keys(commands)) {
		values = append(values, commands[kind]())
	}
	return values
}

// TestEveryPersistedFieldHasAName of its own: renaming it in Go does not change what is on disk.
func TestEveryPersistedFieldHasAName(t *testing.T) {
	name := regexp.MustCompile(`^[a-z][a-z0-9_]*$`)
	var check func(kind reflect.Type)
	check = func(kind reflect.Type) {
		switch {
		case kind.Kind() == reflect.Pointer, kind.Kind() == reflect.Slice:
			check(kind.Elem())
		case kind.Kind() == reflect.Struct && kind != reflect.TypeFor[time.Time]():
			for f := range kind.Fields() {
				if tag, _, _ := strings.Cut(f.Tag.Get("json"), ","); !name.MatchString(tag) {
					t.Errorf("%s.%s has the name %q", kind, f.Name, tag)
				}
				check(f.Type)
			}
		}
	}
	for _, v := range persisted() {
		check(reflect.TypeOf(v))
	}
}

// TestPersistedFormsStay: what testdata/golden records is what this program writes, and reads. A difference needs a newer version, or
// an old form that is still read.
func TestPersistedFormsStay(t *testing.T) {
	var text bytes.Buffer
	for _, v := range persisted() {
		fill(reflect.ValueOf(v).Elem())
		line, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		again := reflect.New(reflect.TypeOf(v).Elem()).Interface()
		if err := json.Unmarshal(line, again); err != nil || !reflect.DeepEqual(again, v) {
			t.Errorf("%T does not survive the round trip: %v\n%s", v, err, line)
		}
		if c, ok := v.(Command); ok {
			text.WriteString(Kind(c) + " ")
		}
		text.Write(append(line, '\n'))
	}
	if *rewrite {
		if err := os.WriteFile("testdata/golden", text.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	golden, err := os.ReadFile("testdata/golden")
	if err != nil {
		t.Fatal(err)
	}
	if text.String() != string(golden) {
		t.Errorf("this program writes\n%s\nrecorded is\n%s", &text, golden)
	}
}
