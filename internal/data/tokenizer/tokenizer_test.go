package tokenizer

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestBytes(t *testing.T) {
	b := Bytes()
	text := "héllo\n\xff"
	ids, err := b.NewEncoder().Append(nil, text)
	if err != nil || len(ids) != len(text) || !b.IsBytes() || b.Vocabulary != 256 {
		t.Fatal(ids, err)
	}
	if got := b.Decode(append(ids, ByteEnd, -1, 300)); got != text {
		t.Errorf("decoded %q", got)
	}
	one, _ := fill(b.Single, []int32{'a', 'b'})
	two, types := fill(b.Pair, []int32{'a', 'b'}, []int32{'c'})
	if !slices.Equal(one, []int32{2, 'a', 'b', 3}) || !slices.Equal(two, []int32{2, 'a', 'b', 3, 'c', 3}) ||
		!slices.Equal(types, []int32{0, 0, 0, 0, 1, 1}) {
		t.Error(one, two, types)
	}
}

// TestSpecialTokensAreFoundByName, of each kind of model.
func TestSpecialTokensAreFoundByName(t *testing.T) {
	for file, want := range map[string][7]string{ // pad, unknown, class, separator, mask, begin, end
		"gpt2":    {6: "<|endoftext|>"},
		"llama3":  {5: "<|begin_of_text|>", 6: "<|end_of_text|>"},
		"bert":    {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[CLS]", "[SEP]"},
		"roberta": {"<pad>", "<unk>", "<s>", "</s>", "<mask>", "<s>", "</s>"},
		"unigram": {"<pad>", "<unk>", "<s>", "</s>", "", "<s>", "</s>"},
	} {
		tok, err := Open(nil, "testdata/"+file+".json")
		if err != nil {
			t.Fatal(err)
		}
		s := tok.Special
		for i, id := range []int32{s.Pad, s.Unknown, s.Class, s.Separator, s.Mask, s.Begin, s.End} {
			got := ""
			if id != None {
				got = tok.tokens[id]
				if back := slices.Index(tok.tokens, got); back != int(id) || !tok.IsSpecial(id) {
					t.Errorf("%s: %q has the id %d", file, got, back)
				}
			}
			if got != want[i] {
				t.Errorf("%s: token %d is %q, want %q", file, i, got, want[i])
			}
		}
	}
}

// TestUnknownTextIsAnError where the vocabulary has no token for it.
func TestUnknownTextIsAnError(t *testing.T) {
	for name, file := range map[string]string{
		"BPE":       `{"model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []}}`,
		"WordPiece": `{"model": {"type": "WordPiece", "vocab": {"a": 0, "##b": 1}}}`,
		"Unigram":   `{"model": {"type": "Unigram", "vocab": [["a", -1], ["b", -2]]}}`,
	} {
		tok, err := Parse([]byte(file))
		if err != nil {
			t.Fatal(name, err)
		}
		if ids, err := tok.NewEncoder().Append(nil, "ab"); err != nil || !slices.Equal(ids, []int32{0, 1}) {
			t.Errorf("%s: %v %v", name, ids, err)
		}
		_, err = tok.NewEncoder().Append(nil, "abc")
		if e, ok := errors.AsType[*UnknownError](err); !ok || !strings.HasSuffix(e.Text, "c") {
			t.Errorf("%s: error %v", name, err)
		}
	}
}

// TestALongWordIsMergedFast: without a step that cuts, a whole text is one word; quadratic merging would take minutes.
func TestALongWordIsMergedFast(t *testing.T) {
	tok, err := Open(nil, "testdata/llama2.json")
	if err != nil {
		t.Fatal(err)
	}
	text := strings.Repeat("the stage computes a micro-batch. ", 5_000)
	ids, err := tok.NewEncoder().Append(nil, text)
	if err != nil {
		t.Fatal(err)
	}
	if got := tok.Decode(ids); got != text {
		t.Errorf("%d characters come back as %d", len(text), len(got))
	}
}

// TestASlowPatternIsAnError, and does not give other words.
func TestASlowPatternIsAnError(t *testing.T) {
	tok, err := Parse([]byte(`{"model": {"vocab": {"a": 0}}, "pre_tokenizer": {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated"}}`))
	if err != nil {
		t.Fatal(err)
	}
	tok.preTokenize[0].(byPattern).pattern.MatchTimeout = time.Millisecond
	if ids, err := tok.NewEncoder().Append(nil, strings.Repeat("a", 60)+"b"); err == nil || !strings.Contains(err.Error(), "takes more than 1ms") {
		t.Errorf("%v %v", ids, err)
	}
}

func TestParseRefuses(t *testing.T) {
	model := `"model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]}`
	for file, want := range map[string]string{
		"":              "not a tokenizer.json",
		"{}":            `has no "model"`,
		"[1]":           "not a tokenizer.json",
		`{"model": {}}`: "vocab",
		`{"model": {"type": "BPE", "vocab": {}}}`:                                                                "vocab is empty",
		`{"model": {"type": "BPX", "vocab": {"a": 0}}}`:                                                          "nearest that is: BPE",
		`{"model": {"type": "WordLevel", "vocab": {"a": 0}}}`:                                                    "not supported",
		`{"model": {"vocab": {"a": 0, "b": 0}}}`:                                                                 "have the same id, 0",
		`{"model": {"vocab": {"a": -1}}}`:                                                                        "has the id -1",
		`{"model": {"vocab": {"a": 999999999}}}`:                                                                 "has the id 999999999",
		`{"model": {"vocab": {"a": 0}, "unk_token": "u"}}`:                                                       `unk_token "u" is not in vocab`,
		`{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": ["ab"]}}`:                                        "is not two tokens",
		`{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": [["a"]]}}`:                                       "a merge of 1 tokens",
		`{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": ["a a"]}}`:                                       "merge 0",
		`{"model": {"type": "BPE", "vocab": {"a": 0}, "dropout": 0.1}}`:                                          "dropout",
		`{"model": {"type": "Unigram", "vocab": [["a"]]}}`:                                                       "entry 0",
		`{"model": {"type": "Unigram", "vocab": [["a", 0]], "unk_id": 1}}`:                                       "unk_id is 1",
		`{"normalizer": {"type": "Lowercases"}, ` + model + `}`:                                                  "nearest that is: Lowercase",
		`{"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}, ` + model + `}`:                 "too few",
		`{"normalizer": {"type": "Precompiled", "precompiled_charsmap": "/////w=="}, ` + model + `}`:             "a table of 4294967295 bytes within 0",
		`{"normalizer": {"type": "Replace", "content": "x"}, ` + model + `}`:                                     "pattern",
		`{"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "("}, "behavior": "Isolated"}, ` + model + `}`: `pattern "("`,
		`{"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "a"}, "behavior": "Is"}, ` + model + `}`:       `behavior "Is"`,
		`{"pre_tokenizer": {"type": "Metaspace", "replacement": "ab"}, ` + model + `}`:                           "not one character",
		`{"decoder": {"type": "CTC"}, ` + model + `}`:                                                            "not supported",
		`{"post_processor": {"type": "BertProcessing"}, ` + model + `}`:                                          "missing",
		`{"post_processor": {"type": "BertProcessing", "sep": ["s", 7], "cls": ["c", 1]}, ` + model + `}`:        `"s" has the id 7; the vocabulary has 3`,
		`{"post_processor": {"type": "TemplateProcessing", "single": [], "pair": []}, ` + model + `}`:            "single",
		`{"added_tokens": [{"id": 0, "content": ""}], ` + model + `}`:                                            "is empty",
		`{"added_tokens": [{"id": 0, "content": "x"}], ` + model + `}`:                                           "have the same id",
	} {
		if _, err := Parse([]byte(file)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want ...%s...", file, err, want)
		}
	}
}

func TestOpenNamesTheFile(t *testing.T) {
	dir := t.TempDir()
	if _, err := Open(nil, dir); err == nil || !strings.Contains(err.Error(), filepath.Join(dir, FileName)) {
		t.Errorf("error %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, FileName), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(nil, dir); err == nil || !strings.Contains(err.Error(), filepath.Join(dir, FileName)) {
		t.Errorf("error %v", err)
	}
}

// FuzzParse: no content makes the loader panic, and what it accepts encodes and decodes within its vocabulary.
func FuzzParse(f *testing.F) {
	files, err := filepath.Glob("testdata/*.json")
	if err != nil {
		f.Fatal(err)
	}
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(content, "The stage's <mask> é 中 1,024.")
	}
	f.Add([]byte(`{"model": {"vocab": {"a": 0}}}`), "a")
	f.Fuzz(func(t *testing.T, content []byte, text string) {
		tok, err := Parse(content)
		if err != nil {
			return
		}
		if strings.Contains(string(content), "Regex") {
			return // a pattern may go back over the text until its time is up
		}
		ids, err := tok.NewEncoder().Append(nil, text)
		for _, id := range ids {
			if id < 0 || int(id) >= tok.Vocabulary {
				t.Fatalf("id %d of %d", id, tok.Vocabulary)
			}
		}
		if _, known := errors.AsType[*UnknownError](err); err != nil && !known {
			t.Fatal(err)
		}
		tok.Decode(ids)
	})
}

// BenchmarkEncode cuts English text into byte-level BPE.
func BenchmarkEncode(b *testing.B) {
	text, err := os.ReadFile("../../../docs/design.md")
	if err != nil {
		b.Fatal(err)
	}
	tok, err := Open(nil, "testdata/gpt2.json")
	if err != nil {
		b.Fatal(err)
	}
	e := tok.NewEncoder()
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		if _, err := e.Append(nil, string(text)); err != nil {
			b.Fatal(err)
		}
	}
}
