package data

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/internal/data/tokenfile"
	"github.com/avgpipe/avgpipe/internal/data/tokenizer"
)

// TestPackingJoinsDocuments of tables and of text files, an end token after each, whatever the tokenizer.
func TestPackingJoinsDocuments(t *testing.T) {
	tok, err := tokenizer.Open(nil, "tokenizer/testdata/gpt2.json")
	if err != nil {
		t.Fatal(err)
	}
	documents := []string{"The first one.", "the second, with \"quotes\"", "third", "a fourth to hold out some"}
	var want []int32
	e := tok.NewEncoder()
	var rows strings.Builder
	files := map[string]string{}
	for i, d := range documents {
		if want, err = e.Append(want, d); err != nil {
			t.Fatal(err)
		}
		want = append(want, tok.Special.End)
		fmt.Fprintf(&rows, "{\"body\": %q}\n", d)
		files[fmt.Sprintf("%d.txt", i)] = d
	}
	rows.WriteString("{\"body\": \"\"}\n")
	const sequence = 4
	for name, c := range map[string]Config{
		"table": {Files: []string{corpus(t, map[string]string{"a.jsonl": rows.String()})}, Format: "jsonl", Columns: Columns{Text: "body"}},
		"files": {Files: []string{corpus(t, files)}, Format: "text"},
	} {
		c.Sequence, c.Tokenizer, c.Validation = sequence, absolute(t, "tokenizer/testdata/gpt2.json"), c.Files
		s := open(t, c)
		b := everything(t, s)
		n := (len(want) - 1) / sequence * sequence
		if len(b.Tokens) != n || !slices.Equal(b.Tokens, want[:n]) || !slices.Equal(b.Targets, want[1:n+1]) {
			t.Errorf("%s: %v, want %v", name, b.Tokens, want)
		}
		if slices.Contains(b.Types, 1) || slices.Contains(b.Mask, 0) {
			t.Errorf("%s: types %v, mask %v", name, b.Types, b.Mask)
		}
	}
}

// TestPortionsAreTheText: a file longer than a portion has the tokens of the whole, and an error in it has its line.
func TestPortionsAreTheText(t *testing.T) {
	var b strings.Builder
	for i := 0; b.Len() < 3*portion; i++ {
		fmt.Fprintf(&b, "line %d of the text\n\n  indented, it's long\n", i)
	}
	text := b.String()
	file := absolute(t, "tokenizer/testdata/gpt2.json")
	tok, err := tokenizer.Open(nil, file)
	if err != nil {
		t.Fatal(err)
	}
	want, err := tok.NewEncoder().Append(nil, text)
	if err != nil {
		t.Fatal(err)
	}
	s := open(t, Config{Files: []string{corpus(t, map[string]string{"a": text})}, Tokenizer: file, Sequence: 7})
	got := make([]int32, s.train.(windows).total())
	s.train.(windows).read(got, 0)
	if len(got) < len(want)/2 || !slices.Equal(got[:len(got)-1], want[:len(got)-1]) {
		t.Errorf("%d tokens differ from the %d of the whole", len(got), len(want))
	}
	bad := text + "and\n\xff no UTF-8\n"
	_, err = Open(t.Context(), Config{Files: []string{corpus(t, map[string]string{"a": bad})}, Tokenizer: file, Sequence: 7})
	if want := fmt.Sprintf(":%d: it is not UTF-8", strings.Count(text, "\n")+2); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("error %v, want %s", err, want)
	}
}

// writeTokens writes a token file of documents of bytes.
func writeTokens(t *testing.T, documents ...string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "f.tokens")
	w, err := tokenfile.Create(path, tokenfile.Header{Width: 1, Vocabulary: 256})
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range documents {
		var ids []int32
		for i := range len(d) {
			ids = append(ids, int32(d[i]))
		}
		if err := w.Add(ids, true); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestTokenFilesAreTheText that they were made of: the same windows in the same order.
func TestTokenFilesAreTheText(t *testing.T) {
	one, two := strings.Repeat("abcdefg", 40), strings.Repeat("0123456789", 30)
	a := open(t, Config{Files: []string{corpus(t, map[string]string{"a": one}), corpus(t, map[string]string{"b": two})}, Sequence: 6, Holdout: 0.2})
	files := []string{writeTokens(t, one), writeTokens(t, two)}
	c := Config{Files: files, Format: "tokens", Sequence: 6, Holdout: 0.2}
	sum, err := Check(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	b := open(t, c)
	if b.Samples() != a.Samples() || b.HeldOut() != a.HeldOut() || sum.Samples != a.Samples() || sum.HeldOut != a.HeldOut() {
		t.Fatalf("%d and %d samples of the files, %d and %d of the text, foretold %+v", b.Samples(), b.HeldOut(), a.Samples(), a.HeldOut(), sum)
	}
	x, y := batch(a, 90), batch(b, 90)
	if err := errors.Join(a.Fill(Cursor{Pipelines: 1, Batch: 90}, 0, 90, x), b.Fill(Cursor{Pipelines: 1, Batch: 90}, 0, 90, y)); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(x.Tokens, y.Tokens) || !slices.Equal(x.Targets, y.Targets) {
		t.Error("the samples differ")
	}
	if err := b.Close(); err != nil {
		t.Error(err)
	}
}

// TestATokenFileThatShrinksIsAnError, not the end of the process.
func TestATokenFileThatShrinksIsAnError(t *testing.T) {
	path := writeTokens(t, strings.Repeat("some text ", 2000))
	s := open(t, Config{Files: []string{path}, Format: "tokens", Sequence: 100})
	if err := os.Truncate(path, 200); err != nil {
		t.Fatal(err)
	}
	n := int(s.Samples())
	err := s.Fill(Cursor{Pipelines: 1, Batch: n}, 0, n, batch(s, n))
	if err == nil || !strings.Contains(err.Error(), "became shorter") {
		t.Errorf("error %v", err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}
