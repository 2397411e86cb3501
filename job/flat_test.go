package job

import (
	"strings"
	"testing"
)

// TestFlatFilesAreStrict: they are held to what a job file is held to, and say so in the same form.
func TestFlatFilesAreStrict(t *testing.T) {
	for source, want := range map[string]string{
		"cores: 3\nlist: [1, 2]\n":           "",
		"":                                   "",
		"corse: 3":                           "f.yaml:1:1: unknown key \"corse\"; a test allows cores, list\n  1 | corse: 3\n    | ^\n  nearest: cores",
		"cores: 1\ncores: 2":                 "f.yaml:2:1: key \"cores\" is here twice; it stands first at line 1",
		"cores: &a 3":                        "anchors, aliases and tags are not allowed in a test",
		"cores: [":                           "f.yaml:1:8: not YAML",
		"- cores":                            "a test is a mapping of cores, list; found a list",
		"cores: 1\n---\ncores: 1":            "a second YAML document; a test is one",
		"cores: " + strings.Repeat("1", 100): "107 bytes; a test has at most 100",
	} {
		f := ReadFlat("f.yaml", []byte(source), "a test", 100, []string{"cores", "list"})
		err := f.Err()
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", source, err, want)
		}
	}
	f := ReadFlat("f.yaml", []byte("cores: 3\nlist: [1, b]\n"), "a test", 100, []string{"cores", "list"})
	if v, found := f.Value("list"); !found || v.Plain || len(v.Items) != 2 || v.Items[1].Text != "b" || v.Items[1].Key != "list[1]" {
		t.Errorf("list is %+v", v)
	}
	if _, found := f.Value("other"); found {
		t.Error("it has a key that is not there")
	}
	f.Refuse("list[1]", "2", "list[1] is no number")
	if err := f.Err(); err == nil || !strings.HasPrefix(err.Error(), "f.yaml:2:11: list[1] is no number") {
		t.Errorf("refused: %v", err)
	}
}
