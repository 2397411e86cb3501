package infer

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/checkpoint"
	"github.com/avgpipe/avgpipe/internal/data"
	"github.com/avgpipe/avgpipe/internal/data/tokenizer"
	"github.com/avgpipe/avgpipe/internal/export"
	"github.com/avgpipe/avgpipe/job"
	"github.com/avgpipe/avgpipe/stage"
	"github.com/avgpipe/avgpipe/stage/model"
)

// fresh writes a model directory with fresh weights, and the card of a job if there is one.
func fresh(t *testing.T, family string, config map[string]any, card *export.Card) string {
	t.Helper()
	m, err := model.Build(family, config)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if card != nil {
		card.Task = m.Task
		writeCard(t, dir, *card)
	}
	writeModel(t, dir, m)
	return dir
}

func writeCard(t *testing.T, dir string, c export.Card) {
	t.Helper()
	text, err := c.Encode()
	if err := errors.Join(err, os.WriteFile(filepath.Join(dir, export.CardFile), text, 0o600)); err != nil {
		t.Fatal(err)
	}
}

func writeModel(t *testing.T, dir string, m *model.Model) {
	t.Helper()
	config, err := json.Marshal(m.Config())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, export.ConfigFile), config, 0o600); err != nil {
		t.Fatal(err)
	}
	var tensors []checkpoint.Tensor
	values := map[string][]float32{}
	for _, p := range m.Params() {
		if p.TiedTo != "" {
			continue
		}
		v := make([]float32, p.Len())
		stage.InitialValues(p, 1, v)
		tensors = append(tensors, checkpoint.Tensor{Name: p.Name, DType: checkpoint.F32, Shape: p.Shape})
		values[p.Name] = v
	}
	_, write, err := checkpoint.EncodeSafetensors(tensors, nil, func(t checkpoint.Tensor, dst []float32, offset int) error {
		copy(dst, values[t.Name][offset:])
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	var file bytes.Buffer
	if err := errors.Join(write(&file), os.WriteFile(filepath.Join(dir, export.WeightsFile), file.Bytes(), 0o600)); err != nil {
		t.Fatal(err)
	}
}

func open(t *testing.T, dir string) *Session {
	t.Helper()
	s, err := Open(api.InferRequest{Model: dir, Name: "job 4 (spam)", Device: "ref"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

var (
	tinyBERT = map[string]any{
		"num_hidden_layers": 1, "num_attention_heads": 1, "hidden_size": 8, "intermediate_size": 8, "max_position_embeddings": 10,
		"vocab_size": 256, "num_labels": 3,
	}
	tinyGPT2 = map[string]any{"n_layer": 1, "n_head": 1, "n_embd": 8, "n_positions": 12, "vocab_size": 256}
)

func TestAModelWithoutACardIsReadAsBytes(t *testing.T) {
	s := open(t, fresh(t, "gpt2", tinyGPT2, nil))
	var out bytes.Buffer
	g := api.InferRequest{Prompt: "ab", Tokens: 5, Temperature: 1, Seed: 2}
	if end, err := s.Generate(t.Context(), g, &out); err != nil || out.Len() != 5 || end.Tokens != 5 || end.PromptTokens != 2 || end.FinishReason != api.FinishLength {
		t.Fatalf("generated %q, error %v", out.String(), err)
	}
	first := out.String()
	out.Reset()
	if _, err := s.Generate(t.Context(), g, &out); err != nil || out.String() != first {
		t.Errorf("the same seed gave %q, then %q (%v)", first, out.String(), err)
	}
	var usage *UsageError
	if _, err := s.Generate(t.Context(), api.InferRequest{Tokens: 0}, &out); !errors.As(err, &usage) {
		t.Errorf("no tokens: %v", err)
	}
}

// A text ends before the first of its stops, wherever pieces of it end, and what only looks like the beginning of one comes through.
func TestAStopEndsTheText(t *testing.T) {
	const text = "one two three two"
	for _, c := range []struct {
		stops []string
		want  string
	}{
		{nil, text},
		{[]string{"four", "three!"}, text},
		{[]string{"tw"}, "one "},
		{[]string{"three", "two t"}, "one "},
		{[]string{"e t", "two"}, "on"},
		{[]string{"o two"}, text},
		{[]string{"two two", "ee two"}, "one two thr"},
	} {
		for size := 1; size <= len(text); size++ {
			var out bytes.Buffer
			w, err := &stopWriter{out: &out, stops: c.stops}, error(nil)
			for at := 0; at < len(text) && err == nil; at += size {
				_, err = w.Write([]byte(text[at:min(at+size, len(text))]))
			}
			if ended := err != nil; ended != (c.want != text) || ended && !errors.Is(err, errEnd) {
				t.Fatalf("stops %q, pieces of %d: error %v", c.stops, size, err)
			}
			if err := w.flush(); err != nil || out.String() != c.want {
				t.Errorf("stops %q, pieces of %d: %q and error %v, want %q", c.stops, size, out.String(), err, c.want)
			}
		}
	}
}

// stopAfter ends a context once so many bytes are written.
type stopAfter struct {
	bytes.Buffer
	n    int
	stop func()
}

func (w *stopAfter) Write(p []byte) (int, error) {
	n, err := w.Buffer.Write(p)
	if w.Len() >= w.n {
		w.stop()
	}
	return n, err
}

func TestAnInterruptedGenerationSaysWhatItDid(t *testing.T) {
	s := open(t, fresh(t, "gpt2", tinyGPT2, nil))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	out := &stopAfter{n: 3, stop: cancel}
	end, err := s.Generate(ctx, api.InferRequest{Prompt: "ab", Tokens: 50, Temperature: 1, Seed: 2, Precision: "bf16"}, out)
	if err != nil || end.FinishReason != api.FinishInterrupted || end.Tokens != 3 || out.Len() != 3 || end.TokensPerSecond <= 0 {
		t.Errorf("error %v, %+v, %q; want three tokens, interrupted", err, end, out.String())
	}
	for _, r := range []api.InferRequest{{Prompt: "a", Tokens: 1, Precision: "f16"}, {Prompt: "a", Tokens: 1, Stop: []string{""}}, {Prompt: "a", Tokens: 1, TopP: 2}} {
		var usage *UsageError
		if _, err := s.Generate(t.Context(), r, out); !errors.As(err, &usage) {
			t.Errorf("%+v: error %v, want one of usage", r, err)
		}
	}
}

func TestEveryLanguageModelContinuesAText(t *testing.T) {
	for family, config := range map[string]map[string]any{
		"gpt2": tinyGPT2,
		"llama": {
			"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "hidden_size": 8, "intermediate_size": 8,
			"max_position_embeddings": 12, "vocab_size": 256,
		},
		"awd-lstm": {"ninp": 8, "nhid": 8, "nlayers": 2, "bptt": 12, "ntoken": 256},
	} {
		s := open(t, fresh(t, family, config, nil))
		var out bytes.Buffer
		if _, err := s.Generate(t.Context(), api.InferRequest{Prompt: "ab", Tokens: 20, Temperature: 1, Seed: 1}, &out); err != nil || out.Len() == 0 {
			t.Errorf("%s: generated %q, error %v", family, out.String(), err)
		}
	}
}

func TestWhatTheModelIsNotForNamesTheVerbThatIs(t *testing.T) {
	s := open(t, fresh(t, "bert", tinyBERT, nil))
	var task *UsageError
	_, err := s.Generate(t.Context(), api.InferRequest{Prompt: "x", Tokens: 1}, &bytes.Buffer{})
	if !errors.As(err, &task) || !strings.HasSuffix(err.Error(), ": it cannot continue a text, its task is classification; try avgpipectl predict") ||
		!strings.HasPrefix(err.Error(), "job 4 (spam): ") {
		t.Errorf("generate with a classifier: %v", err)
	}
	err = s.Translate(t.Context(), 1, []string{"x"}, func(api.Translation) error { return nil })
	if !errors.As(err, &task) {
		t.Errorf("translate with a classifier: %v", err)
	}
}

func TestOpenRefusesWhatDoesNotBelongTogether(t *testing.T) {
	large := map[string]any{"n_layer": 1, "n_head": 1, "n_embd": 8, "n_positions": 12, "vocab_size": 300}
	if _, err := Open(api.InferRequest{Model: fresh(t, "gpt2", large, nil), Device: "ref"}); err == nil || !strings.Contains(err.Error(), "no tokenizer.json") {
		t.Errorf("300 token ids and no tokenizer: %v", err)
	}
	small := map[string]any{"n_layer": 1, "n_head": 1, "n_embd": 8, "n_positions": 12, "vocab_size": 100}
	if _, err := Open(api.InferRequest{Model: fresh(t, "gpt2", small, &export.Card{}), Device: "ref"}); err == nil || !strings.Contains(err.Error(), "256 token ids, the model has 100") {
		t.Errorf("bytes for 100 token ids: %v", err)
	}
	dir := fresh(t, "gpt2", tinyGPT2, nil)
	writeCard(t, dir, export.Card{Task: model.Images})
	if _, err := Open(api.InferRequest{Model: dir, Device: "ref"}); err == nil || !strings.Contains(err.Error(), "is of the task images") {
		t.Errorf("a card of another task: %v", err)
	}
	if _, err := Open(api.InferRequest{Model: t.TempDir(), Device: "ref"}); err == nil {
		t.Error("an empty directory was opened")
	}
}

func TestInputsAreEncodedAsInTraining(t *testing.T) {
	s := open(t, fresh(t, "bert", tinyBERT, &export.Card{Sequence: 8, Data: job.Data{Labels: []string{"a", "b", "c"}}}))
	const begin, end = tokenizer.ByteBegin, tokenizer.ByteSeparator
	for input, want := range map[string]struct{ ids, types []int32 }{
		"xy":         {[]int32{begin, 'x', 'y', end}, []int32{0, 0, 0, 0}},
		"abcdefgh":   {[]int32{begin, 'a', 'b', 'c', 'd', 'e', 'f', end}, []int32{0, 0, 0, 0, 0, 0, 0, 0}},
		"abcdef\tgh": {[]int32{begin, 'a', 'b', 'c', end, 'g', 'h', end}, []int32{0, 0, 0, 0, 0, 1, 1, 1}},
		"abc\tdef":   {[]int32{begin, 'a', 'b', 'c', end, 'd', 'e', end}, []int32{0, 0, 0, 0, 0, 1, 1, 1}},
	} {
		b := data.Batch{Tokens: make([]int32, 16), Types: make([]int32, 16), Mask: make([]int32, 16)}
		ids, err := s.enter(b, 1, input)
		types := b.Types[8 : 8+len(ids)]
		if err != nil || !slices.Equal(ids, want.ids) || !slices.Equal(types, want.types) || !slices.Equal(b.Tokens[8:8+len(ids)], ids) ||
			slices.Contains(b.Mask[8:8+len(ids)], 0) || slices.Contains(b.Mask[8+len(ids):], 1) {
			t.Errorf("%q: ids %v types %v (%v), want %v %v", input, ids, types, err, want.ids, want.types)
		}
	}
	var labels []string
	err := s.Predict(t.Context(), 3, []string{"xy", "abcdefghijkl"}, func(p api.Prediction) error {
		sum := 0.0
		for _, g := range p.Guesses[0] {
			labels, sum = append(labels, g.Label), sum+g.Probability
		}
		if math.Abs(sum-1) > 1e-6 {
			t.Errorf("%q: probabilities add up to %v", p.Input, sum)
		}
		return nil
	})
	if slices.Sort(labels); err != nil || strings.Join(labels, "") != "aabbcc" {
		t.Errorf("guessed %v (%v)", labels, err)
	}
}

func TestHiddenTokensAreFilledIn(t *testing.T) {
	config := map[string]any{
		"num_hidden_layers": 1, "num_attention_heads": 1, "hidden_size": 8, "intermediate_size": 8, "max_position_embeddings": 10,
		"vocab_size": 256, "architectures": "BertForMaskedLM",
	}
	s := open(t, fresh(t, "bert", config, &export.Card{Sequence: 10}))
	err := s.Predict(t.Context(), 2, []string{"a[MASK]c[MASK]"}, func(p api.Prediction) error {
		if len(p.Guesses) != 2 || len(p.Guesses[0]) != 2 || p.Guesses[0][0].Probability < p.Guesses[0][1].Probability {
			t.Errorf("guesses %+v, want 2 of each of 2 hidden tokens, the likeliest first", p.Guesses)
		}
		want := "a" + p.Guesses[0][0].Label + "c" + p.Guesses[1][0].Label
		if p.Text != want {
			t.Errorf("filled in: %q, want %q", p.Text, want)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Predict(t.Context(), 1, []string{"abc"}, func(api.Prediction) error { return nil }); err == nil || !strings.Contains(err.Error(), "no token is hidden") {
		t.Errorf("nothing hidden: %v", err)
	}
}

// pieces is a tokenizer of bytes in GPT-2's writing: the two of é are two tokens.
const pieces = `{"version": "1.0", "added_tokens": [], "normalizer": null, "post_processor": null,
"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
"decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
"model": {"type": "BPE", "vocab": {"Ã": 0, "©": 1, "!": 2}, "merges": []}}`

func TestTextIsWrittenOnceItIsCertain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tokenizer.json")
	if err := os.WriteFile(path, []byte(pieces), 0o600); err != nil {
		t.Fatal(err)
	}
	tokens, err := tokenizer.Open(nil, path)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	w := newTextWriter(tokens, 2, &out) // the prompt ended with an exclamation mark, which is not written again
	for i, want := range []string{"", "é", "é!"} {
		if err := w.write(int32(i)); err != nil || out.String() != want {
			t.Errorf("after token %d: %q (%v), want %q", i, out.String(), err, want)
		}
	}
	if err := errors.Join(w.write(0), w.flush()); err != nil || !strings.HasPrefix(out.String(), "é!") || out.Len() <= len("é!") {
		t.Errorf("half a character at the end: %q (%v)", out.String(), err)
	}
}

// TestEvaluateMeasuresTheTextAsAJobsValidationDoes: the file that is named is the text, whole. It is not cut into a part to train on
// and one that is held out, which costs a window and adds an end token at the cut.
func TestEvaluateMeasuresTheTextAsAJobsValidationDoes(t *testing.T) {
	dir := fresh(t, "gpt2", tinyGPT2, nil) // T = 12
	file := func(bytes int) string {
		path := filepath.Join(t.TempDir(), "text")
		if err := os.WriteFile(path, []byte(strings.Repeat("abcdefghij\n", bytes/11+1)[:bytes]), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for bytes, samples := range map[int]int{12: 1, 20: 1, 24: 2, 480: 40, 491: 40} { // bytes and an end token; n tokens have (n-1)/12 windows
		s := open(t, dir)
		path := file(bytes)
		scores, err := s.Evaluate(t.Context(), api.InferRequest{Files: []string{path}})
		if err != nil || scores.Samples != samples || scores.Targets != 12*samples {
			t.Errorf("%d bytes: %d samples of %d targets (%v), want %d of %d", bytes, scores.Samples, scores.Targets, err, samples, 12*samples)
		}
		c := s.dataConfig()
		c.Files, c.Validation = []string{file(100)}, []string{path}
		set, err := data.Open(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		if int(set.HeldOut()) != scores.Samples {
			t.Errorf("%d bytes: %d samples, as data.validation of a job %d", bytes, scores.Samples, set.HeldOut())
		}
		if err := set.Close(); err != nil {
			t.Error(err)
		}
	}
	s := open(t, dir)
	_, err := s.Evaluate(t.Context(), api.InferRequest{Files: []string{file(6)}})
	if err == nil || err.Error() != "--data: the files hold 7 tokens, too few for a sample of 12" {
		t.Errorf("a text shorter than a sample: %v", err)
	}
}
