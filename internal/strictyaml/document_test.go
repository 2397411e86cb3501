package strictyaml

import (
	"strings"
	"testing"
)

// example is what a file of the tests may hold.
type example struct {
	Cores int   `yaml:"cores"`
	List  []int `yaml:"list"`
}

var schema = SchemaOf[example]("a test", 100)

// TestFilesAreReadStrictly: whatever is read with this package says what is wrong in the same words, with the line.
func TestFilesAreReadStrictly(t *testing.T) {
	for source, want := range map[string]string{
		"cores: 3\nlist: [1, 2]\n":           "",
		"":                                   "",
		"corse: 3":                           "f.yaml:1:1: unknown key \"corse\"; a test allows cores, list\n  1 | corse: 3\n    | ^\n  nearest: cores",
		"cores: 1\ncores: 2":                 "f.yaml:2:1: key \"cores\" is here twice; it stands first at line 1",
		"cores: &a 3":                        "anchors, aliases and tags are not allowed in a test",
		"- cores":                            "a test is a mapping of keys to values: cores, list; found a list",
		"cores: 1\n---\ncores: 1":            "a second YAML document; a test is one",
		"cores: " + strings.Repeat("1", 100): "107 bytes; a test has at most 100",
	} {
		d := schema.Read("f.yaml", []byte(source))
		d.Decode(&example{})
		err := d.Err()
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", source, err, want)
		}
	}
	d := schema.Read("f.yaml", []byte("cores: 3\nlist: [1, b]\n"))
	if v := d.Value("list"); v == nil || v.Plain() || len(v.Items) != 2 || v.Items[1].Scalar != "b" || v.Items[1].Key != "list[1]" {
		t.Errorf("list is %+v", v)
	}
	if d.Value("other") != nil {
		t.Error("it has a key that is not there, or nothing")
	}
	d.Refuse("list[1]", "2", "list[1] is no number")
	if err := d.Err(); err == nil || !strings.HasPrefix(err.Error(), "f.yaml:2:11: list[1] is no number") || !d.Refused("list[1].x") || d.Refused("cores") {
		t.Errorf("refused: %v", err)
	}
}

// TestSyntaxIsExplainedInWordsAboutTheFile, not in those of the parser.
func TestSyntaxIsExplainedInWordsAboutTheFile(t *testing.T) {
	for source, want := range map[string]string{
		"cores: [1, 2":         "f.yaml:1:8: not YAML: a list is not closed; write ] at its end",
		"cores: {a: 1":         "not YAML: a mapping is not closed; write } at its end",
		"cores: \"a":           "not YAML: a double quote is not closed",
		"cores: 'a":            "not YAML: a single quote is not closed",
		"cores: [1 2]]":        "not YAML: this value does not belong here",
		"cores: 1}":            "",
		"cores: @a":            "not YAML: a value cannot begin with @ or a backquote; put the text between quotes",
		"cores: `a`":           "not YAML: a value cannot begin with @ or a backquote; put the text between quotes",
		"cores: %80":           "not YAML: ",
		"cores: 80%":           "",
		"cores: 1\n list: [2]": "not YAML: ",
		"cores: |x\n  a":       "not YAML: nothing may follow the | or > that begins a text of several lines",
		"cores: 1\nlist":       "not YAML: a key and a colon are missing before this text, or a colon behind it",
		"cores: - 1":           "not YAML: a list with dashes begins on a line of its own",
		"cores: [1,, 2]":       "not YAML: ",
		"%cores: 1":            "not YAML: a line that begins with % is a directive of YAML; put the text between quotes",
	} {
		err := schema.Read("f.yaml", []byte(source)).Err()
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", source, err, want)
		}
	}
}
