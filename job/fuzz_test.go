package job

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// FuzzParse: no text makes the parser panic, and every problem lies inside its line.
func FuzzParse(f *testing.F) {
	f.Add(shortest, "")
	f.Add(shortest, "train.steps=5")
	f.Add(strings.ReplaceAll(shortest, "\n", "\r\n"), "data.files=[a, \"b\"]")
	for _, text := range []string{"a: é: b", "? [a]\n: b", "a: &x 1\nb: *x", "\ta: 1", "[[[[", "- - - -", "a: |\n  x\n", "\"a\nb\": 1", "\xff: 1", "é: [\n"} {
		f.Add(text, "a.b.c="+text)
	}
	paths, err := filepath.Glob("testdata/parse/*")
	if err != nil || len(paths) == 0 {
		f.Fatalf("no scenarios: %v", err)
	}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		for scenario := range strings.SplitSeq(string(text), "\n\n") {
			if _, body, ok := strings.Cut(scenario, "\nparse"); ok {
				_, body, _ = strings.Cut(body, "\n")
				source, _, _ := strings.Cut(body, "\n----")
				f.Add(source, "seed=1")
			}
		}
	}
	f.Fuzz(func(t *testing.T, source, setting string) {
		var set []string
		if setting != "" {
			set = []string{setting}
		}
		j, p, err := Parse("job.yaml", []byte(source), set, environment)
		if p == nil || (j == nil) != (err != nil) {
			t.Fatalf("job %v, positions %v, error %v", j, p, err)
		}
		if err != nil {
			inside(t, source, err)
		}
	})
}
