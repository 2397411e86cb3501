package data

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/internal/access"
	"github.com/avgpipe/avgpipe/internal/data/table"
)

// TestOpenRefusesBadContent: before training starts, with the file and the line.
func TestOpenRefusesBadContent(t *testing.T) {
	good := "text,label\na,yes\nb,no\n"
	one := func(content string) []string { return []string{corpus(t, map[string]string{"f": content})} }
	gpt2 := absolute(t, "tokenizer/testdata/gpt2.json")
	for name, c := range map[string]struct {
		config             Config
		key, text, nearest string
	}{
		"missing column": {Config{Task: Classification, Format: "csv", Files: one("text,lable\na,1\n")}, "data.columns", `/f:1: no column "label"`, "lable"},
		"short row":      {Config{Task: Classification, Format: "csv", Files: one(good + "c\n")}, "data.files", "/f:4: it has 1 fields", ""},
		"wrong label": {
			Config{Task: Classification, Format: "csv", Files: one(good + "c,yess\n"), Labels: []string{"no", "yes"}},
			"data.labels", `/f:4: the label "yess" is none of the 2 classes`, "yes",
		},
		"number beyond the labels": {
			Config{Task: Classification, Format: "csv", Files: one("text,label\na,0\nb,2\n"), Labels: []string{"no", "yes"}},
			"data.labels", `/f:3: the label "2"`, "",
		},
		"too many classes": {
			Config{Task: Classification, Format: "csv", Files: one(good + "c,maybe\n"), ModelClasses: 2},
			"data.columns.label", "there are 3 classes (maybe, no, yes), the model has 2", "",
		},
		"one class":    {Config{Task: Classification, Format: "csv", Files: one("text,label\na,x\nb,x\n")}, "data.files", "one class, x", ""},
		"one sample":   {Config{Task: Translation, Format: "csv", Files: one("source,target\na,b\n")}, "data.files", "1 sample", ""},
		"empty source": {Config{Task: Translation, Format: "csv", Files: one("source,target\na,b\n,c\n")}, "data.files", `/f:3: column "source" is empty`, ""},
		"unknown text": {
			Config{Task: Classification, Format: "csv", Files: one(good + "\u00e9,no\n"), Tokenizer: absolute(t, "testdata/letters.json")},
			"data.files", `/f:4: column "text": "é" has no token`, "",
		},
		"unknown text of a file": {
			Config{Files: one("a b\nb a\nc\n"), Tokenizer: absolute(t, "testdata/letters.json")}, "data.files", `/f:3: "c" has no token`, "",
		},
		"vocabulary":    {Config{Files: one(good), Tokenizer: gpt2, ModelVocabulary: 100}, "data.tokenizer", "makes 507 token ids, the model has room for 100", ""},
		"no mask":       {Config{Task: MaskedLanguage, Files: one(good), Tokenizer: gpt2}, "data.tokenizer", "no token that hides", ""},
		"no tokenizer":  {Config{Files: one(good), Tokenizer: "/no/such/tokenizer.json"}, "data.tokenizer", "no such file", ""},
		"frame":         {Config{Task: MaskedLanguage, Files: one(good), Tokenizer: absolute(t, bertFile), Sequence: 2}, "data.sequence", "no room", "3"},
		"token file":    {Config{Format: "tokens", Files: one("no token file, but text")}, "data.files", "not a token file", ""},
		"its tokenizer": {Config{Format: "tokens", Files: []string{writeTokens(t, good)}, Tokenizer: gpt2}, "data.tokenizer", "written with the tokenizer", ""},
		"images alone": {
			Config{Task: Images, Format: "idx", Files: one(idxFile([]byte{1}, 1, 1, 1))}, "data.files", "1 files of images and 0 of labels", "",
		},
		"counts": {
			Config{Task: Images, Format: "idx", Files: []string{corpus(t, map[string]string{
				"i": idxFile([]byte{1, 2}, 2, 1, 1), "l": idxFile([]byte{1, 2, 3}, 3),
			})}}, "data.files", "2 images, and", "",
		},
		"shape": {
			Config{Task: Images, Format: "idx", Image: Image{1, 28, 28}, Files: []string{corpus(t, map[string]string{
				"i": idxFile([]byte{1, 2}, 2, 1, 1), "l": idxFile([]byte{1, 2}, 2),
			})}}, "data.files", "the model takes {1 28 28}", "",
		},
		"no image":         {Config{Task: Images, Format: "images", Image: Image{3, 2, 2}, Files: one("text")}, "data.files", "neither PNG nor JPEG", ""},
		"numbers":          {Config{Task: Images, Format: "idx", Mean: []float64{1, 2}, Files: []string{corpus(t, map[string]string{"i": idxFile([]byte{1, 2}, 2, 1, 1), "l": idxFile([]byte{1, 2}, 2)})}}, "data.mean", "2 numbers for images of 1", ""},
		"cap":              {Config{Task: Classification, Format: "csv", Files: one(good), CapBytes: 20}, "data.files", "above the 20", ""},
		"format":           {Config{Task: Classification, Files: one(good)}, "data.format", "classification", "jsonl"},
		"column unread":    {Config{Format: "csv", Files: one(good), Columns: Columns{Label: "label"}}, "data.columns.label", "is not read", ""},
		"columns of text":  {Config{Files: one(good), Columns: Columns{Text: "text"}}, "data.columns.text", "is not read", ""},
		"labels unread":    {Config{Files: one(good), Labels: []string{"a", "b"}}, "data.labels", "is not read", ""},
		"masked unread":    {Config{Files: one(good), Masked: 0.3}, "data.masked", "is not read in the task language from the format text; remove it, or train a masked", ""},
		"header unread":    {Config{Files: one(good), NoHeader: true}, "data.header", "remove it, or set data.format to csv or tsv", ""},
		"label twice":      {Config{Task: Classification, Format: "csv", Files: one(good), Labels: []string{"a", "a"}}, "data.labels[1]", "twice", ""},
		"validation":       {Config{Files: one(strings.Repeat(good, 9)), Validation: []string{"/no/such"}}, "data.validation[0]", "does not exist", ""},
		"short validation": {Config{Files: one(strings.Repeat(good, 9)), Validation: one("short")}, "data.validation", "6 tokens, too few", ""},
	} {
		if c.config.Sequence == 0 {
			c.config.Sequence = 16
		}
		s, err := Open(t.Context(), c.config)
		e, ok := errors.AsType[*Error](err)
		if !ok || s != nil {
			t.Errorf("%s: error is %v, want an *Error", name, err)
			continue
		}
		if e.Key != c.key || !strings.Contains(e.Err.Error(), c.text) || e.Nearest != c.nearest {
			t.Errorf("%s: got %q: %q nearest %q\nwant %q: ...%s... nearest %q", name, e.Key, e.Err, e.Nearest, c.key, c.text, c.nearest)
		}
	}
}

// TestCheckReadsTheRowsOfTables, all of them when they are not large, and names the line; it makes no tokens.
func TestCheckReadsTheRowsOfTables(t *testing.T) {
	for name, c := range map[string]struct {
		config  Config
		content string
		line    int
		text    string
	}{
		"no column":     {Config{Task: Classification, Format: "csv"}, "a,b\n1,2\n", 1, `no column "label"`},
		"short row":     {Config{Task: Classification, Format: "csv"}, "text,label\na,1\nb\n", 3, "it has 1 fields"},
		"wrong label":   {Config{Task: Classification, Format: "csv", Labels: []string{"no", "yes"}}, "text,label\na,yes\nb,yess\n", 3, `the label "yess"`},
		"empty target":  {Config{Task: Translation, Format: "tsv"}, "source\ttarget\na\tb\na\t\n", 3, `column "target" is empty`},
		"a key missing": {Config{Format: "jsonl"}, "{\"text\": \"a\"}\n{\"txt\": \"b\"}\n", 2, `no column "text"`},
	} {
		c.config.Sequence, c.config.Files = 4, []string{corpus(t, map[string]string{"f": c.content})}
		_, err := Check(t.Context(), c.config)
		if e, ok := errors.AsType[*table.Error](err); !ok || e.Line != c.line || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: error %v, expected one at line %d with %q", name, err, c.line, c.text)
		}
	}
}

// TestCheckCountsTheSamplesOfTables as Open does.
func TestCheckCountsTheSamplesOfTables(t *testing.T) {
	rows := "text,label\n" + strings.Repeat("a,yes\nb,no\n", 30)
	c := Config{Task: Classification, Format: "csv", Sequence: 4, Files: []string{corpus(t, map[string]string{"f": rows})}}
	s := open(t, c)
	sum, err := Check(t.Context(), c)
	if err != nil || sum.Samples != s.Samples() || sum.HeldOut != s.HeldOut() || sum.Samples+sum.HeldOut != 60 {
		t.Errorf("check: %+v (%v), opened: %d and %d", sum, err, s.Samples(), s.HeldOut())
	}
}

// TestCheckReadsNoFurtherInLargeTables: the first row of each file is looked at, the rest when the data are opened.
func TestCheckReadsNoFurtherInLargeTables(t *testing.T) {
	path := corpus(t, map[string]string{"f": "text,label\na,1\nb\n"})
	if err := os.Truncate(filepath.Join(path, "f"), wholeBytes+1); err != nil {
		t.Fatal(err)
	}
	sum, err := Check(t.Context(), Config{Task: Classification, Format: "csv", Sequence: 4, Files: []string{path}})
	if err != nil || sum.Files != 1 || sum.Samples != 0 {
		t.Errorf("%+v %v", sum, err)
	}
}

// TestCheckOpensWithTheUsersRights what it lists and the tokenizer, and says what it opens.
func TestCheckOpensWithTheUsersRights(t *testing.T) {
	dir := corpus(t, map[string]string{"f": "text,label\na,1\nb,0\n"})
	var opened []string
	c := Config{
		Task: Classification, Format: "csv", Sequence: 4, Files: []string{filepath.Join(dir, "f")}, Tokenizer: absolute(t, bertFile),
		Access: &access.Opener{OnOpen: func(path string) { opened = append(opened, path) }},
	}
	if _, err := Check(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	if want := []string{c.Tokenizer, c.Files[0]}; !slices.Equal(opened, want) {
		t.Errorf("opened %q, want %q", opened, want)
	}
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	c.Access = &access.Opener{User: &access.User{UID: 54321, GIDs: []uint32{54321}}}
	for range 2 {
		_, err := Check(t.Context(), c)
		e, ok := errors.AsType[*Error](err)
		if !ok || e.Key != "data.files[0]" || !errors.Is(err, fs.ErrPermission) || !strings.Contains(err.Error(), "user 54321 may not enter") {
			t.Errorf("%v: %v, want a refusal under its key", c.Files, err)
		}
		c.Files = []string{dir + "/*"}
	}
}

// TestIdentityCountsTheTokenizer: the same files in other tokens are other data.
func TestIdentityCountsTheTokenizer(t *testing.T) {
	c := Config{Files: []string{corpus(t, map[string]string{"a": strings.Repeat("some text. ", 50)})}, Sequence: 4}
	seen := map[string]string{}
	for _, name := range []string{"", "gpt2", "bert", "roberta"} {
		if name != "" {
			c.Tokenizer = absolute(t, "tokenizer/testdata/"+name+".json")
		}
		digest := open(t, c).Identity.Digest
		if other, ok := seen[digest]; ok {
			t.Errorf("%q and %q have the same identity", name, other)
		}
		seen[digest] = name
	}
}
