package main

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/internal/api"
)

// TestFineTuningKeepsWhatTheModelBrings trains a small model with a tokenizer, adds to the exported directory what other programs leave
// there, and trains on from it: without a word about family or tokenizer, the model's own are taken, and the new export still holds
// what the old one held.
func TestFineTuningKeepsWhatTheModelBrings(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.write("tokenizer.json", animals)
	s.write("first.txt", strings.Repeat("cat dog cow\n", 200))
	s.write("second.txt", strings.Repeat("cow cow dog\n", 200))
	s.start()
	const rest = `optimizer: {lr: 1e-2}
train: {steps: 4, batch: 4, eval_samples: 4}
stages: 1
pipelines: 1
micro_batches: 1
devices: {kind: ref}
`
	train := func(name, head string) (api.JobStatus, string) {
		t.Helper()
		answer, err := s.client.Submit(t.Context(), api.SubmitRequest{File: name + ".yaml", Source: "version: 1\nname: " + name + "\n" + head + rest, Base: s.dir})
		if err != nil {
			t.Fatal(err)
		}
		status := s.ended(answer.ID)
		if status.State != api.Done {
			t.Fatalf("the job is %s: %s", status.State, status.Reason)
		}
		return status, s.export(answer.ID)
	}
	_, from := train("first", `model: {family: llama, config: {num_hidden_layers: 1, num_attention_heads: 2, hidden_size: 8, intermediate_size: 8, max_position_embeddings: 12, vocab_size: 40}}
data: {files: [first.txt], tokenizer: tokenizer.json}
`)
	config := filepath.Join(from, "config.json")
	text, err := os.ReadFile(config)
	if err != nil {
		t.Fatal(err)
	}
	more := strings.Replace(string(text), "{", `{"bos_token_id": 1, "pad_token_id": 3, "my_note": "kept",`, 1)
	companions := map[string]string{"tokenizer_config.json": `{"model_max_length": 12}`, "generation_config.json": `{"top_k": 5}`}
	if err := os.WriteFile(config, []byte(more), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, content := range companions {
		if err := os.WriteFile(filepath.Join(from, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}

	status, tuned := train("second", "model: {from: "+from+"}\ndata: {files: [second.txt]}\n")
	if status.Family != "llama" {
		t.Errorf("the family of the model is %q, want llama", status.Family)
	}
	companions["tokenizer.json"] = animals
	for name, want := range companions {
		if found, err := os.ReadFile(filepath.Join(tuned, name)); err != nil || string(found) != want {
			t.Errorf("%s is %.40q (%v), want %.40q", name, found, err, want)
		}
	}
	var found struct {
		BOS  int    `json:"bos_token_id"`
		Pad  int    `json:"pad_token_id"`
		Note string `json:"my_note"`
	}
	text, err = os.ReadFile(filepath.Join(tuned, "config.json"))
	if err := errors.Join(err, json.Unmarshal(text, &found)); err != nil || found.BOS != 1 || found.Pad != 3 || found.Note != "kept" {
		t.Errorf("config.json lost what it held: %s (%v)", text, err)
	}

	// A model of words without its tokenizer is refused: it would be trained on bytes, which mean nothing to it.
	if err := errors.Join(os.Remove(filepath.Join(from, "tokenizer.json")), os.Remove(filepath.Join(from, "avgpipe.json"))); err != nil {
		t.Fatal(err)
	}
	source := "version: 1\nname: third\nmodel: {from: " + from + "}\ndata: {files: [second.txt]}\n" + rest
	_, err = s.client.Submit(t.Context(), api.SubmitRequest{File: "third.yaml", Source: source, Base: s.dir})
	if err == nil || !strings.Contains(err.Error(), "has no tokenizer.json, and 40 token ids are not bytes") {
		t.Errorf("a model of words without a tokenizer: %v", err)
	}
}
