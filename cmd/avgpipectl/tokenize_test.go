package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/internal/data"
)

// TestTokenize writes a file that a job can read, and says what it holds.
func TestTokenize(t *testing.T) {
	dir := t.TempDir()
	for name, content := range map[string]string{
		"a.txt": "first", "b.txt": "second one", "c.jsonl": "{\"body\": \"third\"}\n{\"body\": \"\"}\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	to := filepath.Join(dir, "out.tokens")
	r := want(t, exitDone, nil, "tokenize", dir+"/*.txt", to, "-o", "json")
	var view tokenizeView
	if err := json.Unmarshal([]byte(r.out), &view); err != nil {
		t.Fatal(err)
	}
	if view.Documents != 2 || view.Tokens != uint64(len("first")+len("second one")+2) || view.Vocabulary != 256 || len(view.Digest) != 64 {
		t.Errorf("got %+v", view)
	}
	set, err := data.Open(t.Context(), data.Config{Files: []string{to}, Validation: []string{to}, Format: "tokens", Sequence: 16})
	if err != nil {
		t.Fatal(err)
	}
	ids := make([]int32, 16)
	if err := set.FillEvaluation(1, 0, 1, data.Batch{Tokens: ids}); err != nil {
		t.Fatal(err)
	}
	text := make([]byte, len(ids))
	for i, id := range ids {
		text[i] = byte(id)
	}
	if string(text) != "first\x00second one" {
		t.Errorf("got %q", text)
	}
	if err := set.Close(); err != nil {
		t.Error(err)
	}
	r = want(t, exitDone, nil, "tokenize", "--format", "jsonl", "--column", "body", dir+"/c.jsonl", to)
	if !strings.Contains(r.out, "6 tokens of 1 documents") || !strings.Contains(r.out, "empty texts skipped: 1") {
		t.Error(r.out)
	}
}

// TestTokenizeRefuses with the file and the line, and leaves nothing behind.
func TestTokenizeRefuses(t *testing.T) {
	dir := t.TempDir()
	bad := filepath.Join(dir, "bad.jsonl")
	if err := os.WriteFile(bad, []byte("{\"text\": \"a\"}\n{\"txt\": \"b\"}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	to := filepath.Join(dir, "out.tokens")
	for says, args := range map[string][]string{
		"bad.jsonl:2: no column \"text\"": {"--format", "jsonl", bad, to},
		"does not exist":                  {filepath.Join(dir, "none"), to},
		"data.tokenizer":                  {"--tokenizer", filepath.Join(dir, "none.json"), bad, to},
		"data.format":                     {"--format", "images", bad, to},
		"usage: avgpipectl tokenize":      {to},
	} {
		if r := want(t, exitRefused, nil, append([]string{"tokenize"}, args...)...); !strings.Contains(r.messages, says) {
			t.Errorf("%v: no %q in: %s", args, says, r.messages)
		}
	}
	if entries, _ := os.ReadDir(dir); len(entries) != 1 {
		t.Error("left behind:", entries)
	}
}
