package job

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/avgpipe/avgpipe/internal/strictyaml"
)

// environment is what the tests' files may refer to.
var environment = Environment{
	Lookup: func(name string) (string, bool) {
		v, ok := map[string]string{"HOME": "/home/ada", "DATA": "/srv/data", "EMPTY": ""}[name]
		return v, ok
	},
	Families:  []string{"gpt2"},
	Schedules: []string{"1f1b", "afp", "gpipe"},
	Methods:   map[string][]string{"elastic": {"pull", "alpha", "horizon"}, "allreduce": nil, "pipesgd": {"warmup"}},
}

// TestParse runs the scenarios in testdata: `parse` reads the input as a job file, with an argument set=(a.b=c) for each
// override (a comma is written ;) and prints the job's fields that differ from the defaults, or the problems; with
// quiet, just "ok".
func TestParse(t *testing.T) {
	datadriven.Walk(t, "testdata/parse", func(t *testing.T, path string) {
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			var set []string
			for _, a := range d.CmdArgs {
				if a.Key == "set" {
					for _, v := range a.Vals {
						set = append(set, strings.ReplaceAll(v, ";", ","))
					}
				}
			}
			switch d.Cmd {
			case "parse":
				j, _, err := Parse("job.yaml", []byte(d.Input+"\n"), set, environment)
				if err != nil {
					inside(t, d.Input+"\n", err)
					return err.Error() + "\n"
				}
				return difference(Default(), j)
			default:
				d.Fatalf(t, "unknown command %q", d.Cmd)
				return ""
			}
		})
	})
}

// inside fails unless every problem lies inside the file or its override.
func inside(t *testing.T, source string, err error) {
	t.Helper()
	lines := strings.Split(strings.ReplaceAll(strings.TrimPrefix(source, "\ufeff"), "\r\n", "\n"), "\n")
	problems, ok := err.(strictyaml.Problems) //nolint:errorlint // Parse documents the type.
	if !ok {
		t.Fatalf("error is a %T, want Problems", err)
	}
	for _, q := range problems {
		text := q.Text
		if q.File != "--set" {
			if q.Line < 1 || q.Line > len(lines) {
				t.Fatalf("line %d of %d: %v", q.Line, len(lines), q)
			}
			if want := strings.ToValidUTF8(lines[q.Line-1], "\uFFFD"); text != want {
				t.Fatalf("text %q, line %d is %q", text, q.Line, want)
			}
		}
		if q.Column < 1 || q.Column > len([]rune(text))+1 {
			t.Fatalf("column %d outside %q", q.Column, text)
		}
		if q.Message == "" || q.Error() == "" {
			t.Fatalf("problem without words: %+v", q)
		}
	}
}

// difference prints the fields in which a job differs from another, one a line.
func difference(from, to *Job) string {
	var b strings.Builder
	x, y := reflect.ValueOf(from).Elem(), reflect.ValueOf(to).Elem()
	for _, f := range schema.Fields {
		if f.Type.Kind() == reflect.Struct {
			continue
		}
		v := y.FieldByIndex(f.Index).Interface()
		if !reflect.DeepEqual(x.FieldByIndex(f.Index).Interface(), v) {
			fmt.Fprintf(&b, "%s = %#v\n", f.Key, v)
		}
	}
	return b.String()
}
