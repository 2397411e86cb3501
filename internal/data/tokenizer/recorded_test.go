package tokenizer

import (
	"bufio"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// recorded is what the reference implementation makes of one text; see testdata/record.mjs.
type recorded struct {
	Vocabulary int     `json:"vocabulary"` // of the first line
	Text       string  `json:"text"`
	IDs        []int32 `json:"ids"`
	Single     []int32 `json:"single"`
	Pair       []int32 `json:"pair"`
	Types      []int32 `json:"types"`
	Decoded    string  `json:"decoded"`
}

func readRecorded(t *testing.T, path string) []recorded {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }() // opened for reading
	var all []recorded
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var r recorded
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			t.Fatal(err)
		}
		all = append(all, r)
	}
	if lines.Err() != nil || len(all) < 30 {
		t.Fatalf("%s: %d lines, %v", path, len(all), lines.Err())
	}
	return all
}

// fill puts texts in a template.
func fill(t Template, texts ...[]int32) (ids, types []int32) {
	for _, item := range t {
		part := []int32{item.ID}
		if item.Text != None {
			part = texts[item.Text]
		}
		ids = append(ids, part...)
		types = append(types, slices.Repeat([]int32{item.Type}, len(part))...)
	}
	return ids, types
}

// TestIDsAreThoseOfTheReference holds every kind of file against the reference implementation, text by text.
func TestIDsAreThoseOfTheReference(t *testing.T) {
	files, err := filepath.Glob("testdata/*.json")
	if err != nil || len(files) < 10 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".json"), func(t *testing.T) {
			tok, err := Open(nil, file)
			if err != nil {
				t.Fatal(err)
			}
			e := tok.NewEncoder()
			all := readRecorded(t, strings.TrimSuffix(file, ".json")+".recorded")
			if tok.Vocabulary != all[0].Vocabulary {
				t.Errorf("a vocabulary of %d, want %d", tok.Vocabulary, all[0].Vocabulary)
			}
			other, err := e.Append(nil, "the other")
			if err != nil {
				t.Fatal(err)
			}
			for _, want := range all[1:] {
				ids, err := e.Append(nil, want.Text)
				if err != nil {
					t.Fatal(err)
				}
				if !slices.Equal(ids, want.IDs) {
					t.Errorf("%q\n got %v\nwant %v\n got %q\nwant %q", want.Text, ids, want.IDs, tok.names(ids), tok.names(want.IDs))
					continue
				}
				if again, _ := e.Append(nil, want.Text); !slices.Equal(again, ids) {
					t.Errorf("%q: from memory %v, at first %v", want.Text, again, ids)
				}
				if single, _ := fill(tok.Single, ids); !slices.Equal(single, want.Single) {
					t.Errorf("%q: single %v, want %v", want.Text, single, want.Single)
				}
				if file != "testdata/gpt2.json" && file != "testdata/steps.json" && file != "testdata/suffix.json" { // they have no pairs, and ours get a separator
					if pair, types := fill(tok.Pair, ids, other); !slices.Equal(pair, want.Pair) || !slices.Equal(types, want.Types) {
						t.Errorf("%q: pair %v %v, want %v %v", want.Text, pair, types, want.Pair, want.Types)
					}
				}
				if text := tok.Decode(ids); text != want.Decoded {
					t.Errorf("%q: decoded %q, want %q", want.Text, text, want.Decoded)
				}
			}
		})
	}
}

// names are the tokens of ids.
func (t *Tokenizer) names(ids []int32) []string {
	var out []string
	for _, id := range ids {
		out = append(out, t.tokens[id])
	}
	return out
}
