package main

import (
	"encoding/json"
	"errors"
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
	r := want(t, exitDone, nil, "tokenize", dir+"/*.txt", "--out", to, "-o", "json")
	var view struct {
		Tokens, Documents uint64
		Vocabulary        uint32
		Digest            string `json:"sha256"`
	}
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
	r = want(t, exitDone, nil, "tokenize", "--format", "jsonl", "--column", "body", dir+"/c.jsonl", "--out", to, "--force")
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
		"bad.jsonl:2: no column \"text\"":                      {"--format", "jsonl", bad, "--out", to},
		"does not exist":                                       {filepath.Join(dir, "none"), "--out", to},
		"data.tokenizer":                                       {"--tokenizer", filepath.Join(dir, "none.json"), bad, "--out", to},
		"allowed are text, jsonl":                              {"--format", "images", bad, "--out", to},
		"usage: avgpipectl tokenize":                           {"--out", to},
		"there is no directory " + filepath.Join(dir, "nodir"): {bad, "--out", filepath.Join(dir, "nodir", "x")},
	} {
		if r := want(t, exitRefused, nil, append([]string{"tokenize"}, args...)...); !strings.Contains(r.messages, says) {
			t.Errorf("%v: no %q in: %s", args, says, r.messages)
		}
	}
	if entries, _ := os.ReadDir(dir); len(entries) != 1 {
		t.Error("left behind:", entries)
	}
}

// TestTokenizeNeverWritesOverAFileUnasked tries the outputs that would destroy something. All files stay as they are.
func TestTokenizeNeverWritesOverAFileUnasked(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	for _, name := range []string{"a.txt", "b.txt", "c.txt"} {
		if err := os.WriteFile(at(name), []byte("text of "+name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.Link(at("a.txt"), at("hard.txt")), os.Symlink("b.txt", at("soft.txt"))); err != nil {
		t.Fatal(err)
	}
	tokenizer := filepath.Join(dir, "tokenizer.json")
	text, err := os.ReadFile("../../internal/data/tokenizer/testdata/gpt2.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(tokenizer, text, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		says string
		args []string
	}{
		{"avgpipectl tokenize " + at("a.txt") + " " + at("b.txt") + " --out " + at("c.txt"), []string{at("a.txt"), at("b.txt"), at("c.txt")}},
		{"avgpipectl tokenize " + at("a.txt") + " --out FILE", []string{at("a.txt")}},
		{"replace it with --force", []string{at("a.txt"), "--out", at("c.txt")}},
		{"is the input " + at("a.txt"), []string{at("a.txt"), "--out", at("a.txt"), "--force"}},
		{"is the input " + at("a.txt"), []string{at("a.txt"), "--out", at("hard.txt"), "--force"}},
		{"is the input", []string{at("*.txt"), "--out", at("c.txt"), "--force"}},
		{"is no plain file", []string{at("a.txt"), "--out", at("soft.txt"), "--force"}},
		{"is no plain file", []string{at("a.txt"), "--out", dir, "--force"}},
		{"is the tokenizer", []string{at("a.txt"), "--tokenizer", tokenizer, "--out", tokenizer, "--force"}},
		{"is the tokenizer", []string{at("a.txt"), "--tokenizer", dir, "--out", tokenizer, "--force"}},
	} {
		if r := want(t, exitRefused, nil, append([]string{"tokenize"}, c.args...)...); !strings.Contains(r.messages, c.says) {
			t.Errorf("%v: no %q in: %s", c.args, c.says, r.messages)
		}
	}
	for _, name := range []string{"a.txt", "b.txt", "c.txt"} {
		if text, err := os.ReadFile(at(name)); err != nil || string(text) != "text of "+name {
			t.Errorf("%s holds %q, %v", name, text, err)
		}
	}
	want(t, exitDone, nil, "tokenize", at("a.txt"), "--out", at("c.txt"), "--force")
}
