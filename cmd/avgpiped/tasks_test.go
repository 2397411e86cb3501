package main

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/export"
)

// taskJob is a job of one task: its data, and what must come of it.
type taskJob struct {
	name string
	file string // of the data
	data string
	// prepare, unless nil, makes the data instead: in a directory of this path.
	prepare func(t *testing.T, path string)
	job     string // without name and data
	check   func(t *testing.T, s api.JobStatus)
	// use uses the exported model.
	use func(t *testing.T, dir, data string)
}

func classifier() taskJob {
	var rows strings.Builder
	rows.WriteString("label,text\n")
	for i := range 240 {
		if i%2 == 0 {
			fmt.Fprintf(&rows, "ham,see you at %d\n", i%12)
		} else {
			fmt.Fprintf(&rows, "spam,win %d now\n", i*7)
		}
	}
	return taskJob{
		name: "classifier", file: "texts.csv", data: rows.String(),
		job: `model:
  family: bert
  config: {num_hidden_layers: 1, num_attention_heads: 2, hidden_size: 16, intermediate_size: 32, max_position_embeddings: 20, vocab_size: 256}
data: {files: [texts.csv], format: csv, holdout: 0.2}
optimizer: {lr: 1e-2, clip_norm: 1}
train: {steps: 120, batch: 8, eval_samples: 48}
stages: 2
pipelines: 2
micro_batches: 2
recompute: block
`,
		check: func(t *testing.T, s api.JobStatus) {
			if s.Accuracy == nil || *s.Accuracy < 0.95 || s.F1 == nil || *s.F1 < 0.95 || s.Perplexity != nil || s.Task != "classification" {
				t.Errorf("a classifier of two words: accuracy %v, F1 %v, perplexity %v", show(s.Accuracy), show(s.F1), show(s.Perplexity))
			}
		},
		use: func(t *testing.T, dir, data string) {
			var got []string
			for _, p := range inferred[api.Prediction](t, api.InferRequest{Verb: api.InferPredict, Model: dir, Top: 2}, "see you at 3", "win 21 now") {
				got = append(got, p.Guesses[0][0].Label)
				if sum := p.Guesses[0][0].Probability + p.Guesses[0][1].Probability; sum < 0.999 || sum > 1.001 {
					t.Errorf("%q: the probabilities of both classes add up to %v", p.Input, sum)
				}
			}
			if strings.Join(got, " ") != "ham spam" {
				t.Errorf("predicted %v", got)
			}
			labels, err := export.Labels(dir) // for whoever reads config.json alone
			if err != nil || strings.Join(labels, " ") != "ham spam" {
				t.Errorf("config.json names the classes %v (%v)", labels, err)
			}
			s := inferred[api.Scores](t, api.InferRequest{Verb: api.InferEvaluate, Model: dir, Files: []string{data}})[0]
			if s.Samples != 240 || s.Targets != 240 || *s.Accuracy < 0.95 || len(s.Classes) != 2 || s.Classes[1].Label != "spam" {
				t.Errorf("evaluation of all rows: %+v", s)
			}
		},
	}
}

func languageModel() taskJob {
	var text strings.Builder
	for i := range 600 {
		fmt.Fprintf(&text, "%d green bottles\n", i%10)
	}
	return taskJob{
		name: "language", file: "song.txt", data: text.String(),
		job: `model: {family: gpt2, config: {n_layer: 1, n_head: 2, n_embd: 24, n_positions: 24, vocab_size: 256}}
data: {files: [song.txt], holdout: 0.1}
optimizer: {lr: 1e-2, clip_norm: 1}
train: {steps: 120, batch: 4, eval_samples: 16}
stages: 1
micro_batches: 2
recompute: full
`,
		check: func(t *testing.T, s api.JobStatus) {
			if s.Perplexity == nil || !(*s.Perplexity < 3) || s.Accuracy != nil || s.Task != "language" {
				t.Errorf("a language model: perplexity %v, accuracy %v", show(s.Perplexity), show(s.Accuracy))
			}
		},
		use: func(t *testing.T, dir, data string) {
			if text := generated(t, api.InferRequest{Model: dir, Prompt: "3 green bot", Tokens: 4}); text != "tles" {
				t.Errorf("continued with %q", text)
			}
			held := inferred[api.Scores](t, api.InferRequest{Verb: api.InferEvaluate, Model: dir, Files: []string{data}, HeldOut: true})[0]
			all := inferred[api.Scores](t, api.InferRequest{Verb: api.InferEvaluate, Model: dir, Files: []string{data}})[0]
			if held.Samples >= all.Samples || held.Targets != 24*held.Samples || *held.Perplexity > 3 || held.Accuracy != nil {
				t.Errorf("evaluation of what is held out: %+v; of all: %+v", held, all)
			}
		},
	}
}

func translator() taskJob {
	words := [][2]string{{"ja", "yes"}, {"nein", "no"}, {"rot", "red"}, {"blau", "blue"}}
	var rows strings.Builder
	for i := range 80 {
		w := words[i%4]
		fmt.Fprintf(&rows, "{\"source\": %q, \"target\": %q}\n", w[0], w[1])
	}
	return taskJob{
		name: "translator", file: "words.jsonl", data: rows.String(),
		job: `model: {family: gnmt, config: {vocab_size: 256, hidden_size: 32, num_layers: 2, max_length: 6, dropout: 0, smoothing: 0}}
data: {files: [words.jsonl], format: jsonl, holdout: 0.2}
optimizer: {lr: 5e-3, clip_norm: 5, betas: [0.9, 0.99]}
train: {steps: 1200, batch: 8, eval_samples: 16}
stages: 3
pipelines: 1
micro_batches: 4
recompute: [full, block, none]
`,
		check: func(t *testing.T, s api.JobStatus) {
			if s.Perplexity == nil || !(*s.Perplexity < 1.3) || s.Accuracy == nil || !(*s.Accuracy > 0.9) || s.F1 != nil {
				t.Errorf("a translator of four words: perplexity %v, accuracy %v", show(s.Perplexity), show(s.Accuracy))
			}
		},
		use: func(t *testing.T, dir, data string) {
			var got []string
			for _, l := range inferred[api.Translation](t, api.InferRequest{Verb: api.InferTranslate, Model: dir, Beam: 2}, "ja", "blau") {
				got = append(got, l.Source+"="+l.Text)
			}
			if strings.Join(got, " ") != "ja=yes blau=blue" {
				t.Errorf("translated %v", got)
			}
			s := inferred[api.Scores](t, api.InferRequest{Verb: api.InferEvaluate, Model: dir, Files: []string{data}, Beam: 1, Samples: 20})[0]
			if s.Samples != 20 || s.BLEU == nil || *s.BLEU < 50 {
				t.Errorf("evaluation of 20 rows: %+v, BLEU %v", s, show(s.BLEU))
			}
		},
	}
}

// animals is a tokenizer of whole words, as BERT has it.
const animals = `{"version": "1.0", "added_tokens": [
  {"id": 0, "content": "[PAD]", "special": true}, {"id": 1, "content": "[UNK]", "special": true},
  {"id": 2, "content": "[CLS]", "special": true}, {"id": 3, "content": "[SEP]", "special": true},
  {"id": 4, "content": "[MASK]", "special": true}],
"normalizer": {"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true, "strip_accents": null, "lowercase": true},
"pre_tokenizer": {"type": "BertPreTokenizer"}, "post_processor": null,
"decoder": {"type": "WordPiece", "prefix": "##", "cleanup": true},
"model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100,
  "vocab": {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "[MASK]": 4, "the": 5, "dog": 6, "barks": 7, "cat": 8, "purrs": 9, ".": 10}}}`

func maskedModel() taskJob {
	return taskJob{
		name: "masked", file: "animals.txt", data: strings.Repeat("The dog barks. The cat purrs. ", 200),
		job: `model:
  family: bert
  config:
    {architectures: BertForMaskedLM, num_hidden_layers: 1, num_attention_heads: 2, hidden_size: 16, intermediate_size: 32,
     max_position_embeddings: 10, vocab_size: 11, hidden_dropout_prob: 0, attention_probs_dropout_prob: 0}
data: {files: [animals.txt], tokenizer: tokenizer.json, holdout: 0.1}
optimizer: {lr: 1e-2, clip_norm: 1}
train: {steps: 120, batch: 8, eval_samples: 16}
stages: 2
pipelines: 1
micro_batches: 2
`,
		check: func(t *testing.T, s api.JobStatus) {
			if s.Perplexity == nil || s.Accuracy == nil || !(*s.Accuracy > 0.9) || s.F1 != nil || s.Task != "masked-language" {
				t.Errorf("a masked language model: perplexity %v, accuracy %v", show(s.Perplexity), show(s.Accuracy))
			}
		},
		use: func(t *testing.T, dir, data string) {
			// The tokenizer has come along with the model.
			p := inferred[api.Prediction](t, api.InferRequest{Verb: api.InferPredict, Model: dir, Top: 1}, "the dog [MASK] . the [MASK] purrs .")[0]
			if !strings.HasPrefix(p.Text, "the dog ") || !strings.HasSuffix(p.Text, " purrs.") || strings.Contains(p.Text, "[") || len(p.Guesses) != 2 {
				t.Errorf("filled in: %q, %+v", p.Text, p.Guesses)
			}
			if s := inferred[api.Scores](t, api.InferRequest{Verb: api.InferEvaluate, Model: dir, Files: []string{data}, Samples: 9})[0]; s.Samples != 9 || *s.Accuracy < 0.8 {
				t.Errorf("evaluation: %+v", s)
			}
		},
	}
}

// imageClassifier tells images that are light on the left from those that are light above.
func imageClassifier() taskJob {
	return taskJob{
		name: "images", file: "pictures",
		prepare: func(t *testing.T, dir string) {
			for i := range 60 {
				paint(t, filepath.Join(dir, []string{"left", "top"}[i%2], fmt.Sprintf("%d.png", i)), i)
			}
		},
		job: `model:
  family: resnet
  config:
    {image_size: 8, num_channels: 1, num_labels: 2, stem: cifar, layer_type: basic, embedding_size: 4, hidden_sizes: [4, 8],
     depths: [1, 1], norm: batch}
data: {files: [pictures], format: images, holdout: 0.2}
optimizer: {lr: 1e-2}
train: {steps: 80, batch: 8, eval_samples: 12}
stages: 2
pipelines: 2
micro_batches: 2
recompute: block
`,
		check: func(t *testing.T, s api.JobStatus) {
			if s.Accuracy == nil || !(*s.Accuracy > 0.9) || s.F1 == nil || s.Perplexity != nil || s.Task != "images" {
				t.Errorf("a classifier of images: accuracy %v, F1 %v, perplexity %v", show(s.Accuracy), show(s.F1), show(s.Perplexity))
			}
		},
		use: func(t *testing.T, dir, data string) {
			p := inferred[api.Prediction](t, api.InferRequest{Verb: api.InferPredict, Model: dir, Top: 1}, filepath.Join(data, "left", "2.png"), filepath.Join(data, "top", "3.png"))
			if p[0].Guesses[0][0].Label != "left" || p[1].Guesses[0][0].Label != "top" {
				t.Errorf("predicted %+v", p)
			}
			if s := inferred[api.Scores](t, api.InferRequest{Verb: api.InferEvaluate, Model: dir, Files: []string{data}})[0]; s.Samples != 60 || *s.Accuracy < 0.9 {
				t.Errorf("evaluation of all images: %+v", s)
			}
		},
	}
}

// paint writes an image of class i%2, with some noise.
func paint(t *testing.T, path string, i int) {
	t.Helper()
	picture := image.NewGray(image.Rect(0, 0, 8, 8))
	for y := range 8 {
		for x := range 8 {
			shade := (x*7 + y*13 + i*29) % 60
			if i%2 == 0 && x < 4 || i%2 == 1 && y < 4 {
				shade += 180
			}
			picture.SetGray(x, y, color.Gray{Y: uint8(shade)}) //nolint:gosec // Below 240.
		}
	}
	var file bytes.Buffer
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), png.Encode(&file, picture), os.WriteFile(path, file.Bytes(), 0o600)); err != nil {
		t.Fatal(err)
	}
}

func show(v *float64) any {
	if v == nil {
		return "none"
	}
	return *v
}

// ran runs infer and returns what it printed.
func ran(t *testing.T, r api.InferRequest, inputs ...string) string {
	t.Helper()
	var out, messages bytes.Buffer
	r.Device = "ref"
	request, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	all := append([]string{"infer", string(request)}, inputs...)
	if code := run(t.Context(), all, &out, &messages); code != exitDone {
		t.Fatalf("avgpiped %s: exit code %d: %s", strings.Join(all, " "), code, messages.String())
	}
	return out.String()
}

// generated is the text that a request for one gives.
func generated(t *testing.T, r api.InferRequest) string {
	t.Helper()
	r.Verb = api.InferGenerate
	var text []byte
	lines := inferred[api.Generated](t, r)
	for _, line := range lines {
		text = append(text, line.Text...)
	}
	if end := lines[len(lines)-1].End; end == nil || end.Tokens > r.Tokens {
		t.Errorf("a generation ends with %+v", lines[len(lines)-1])
	}
	return string(text)
}

// inferred runs infer with a verb that prints lines.
func inferred[T any](t *testing.T, r api.InferRequest, inputs ...string) []T {
	t.Helper()
	var lines []T
	for decoder := json.NewDecoder(strings.NewReader(ran(t, r, inputs...))); ; {
		var line T
		if err := decoder.Decode(&line); errors.Is(err, io.EOF) {
			return lines
		} else if err != nil {
			t.Fatal(err)
		}
		lines = append(lines, line)
	}
}

// TestEveryTaskTrainsAndIsUsed takes a job of each task from its file to the use of the exported model, through the daemon.
func TestEveryTaskTrainsAndIsUsed(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.write("tokenizer.json", animals)
	s.start()
	for _, c := range []taskJob{languageModel(), classifier(), maskedModel(), imageClassifier(), translator()} {
		t.Run(c.name, func(t *testing.T) {
			if c.prepare != nil {
				c.prepare(t, filepath.Join(s.dir, c.file))
			} else {
				s.write(c.file, c.data)
			}
			source := "version: 1\nname: " + c.name + "\n" + c.job + "devices: {kind: ref}\nseed: 1\n"
			answer, err := s.client.Submit(t.Context(), api.SubmitRequest{File: c.name + ".yaml", Source: source, Base: s.dir})
			if err != nil {
				t.Fatal(err)
			}
			status := s.ended(answer.ID)
			if status.State != api.Done {
				t.Fatalf("the job is %s: %s", status.State, status.Reason)
			}
			if !(*status.EvalLoss < *status.InitialLoss) {
				t.Errorf("the evaluation loss went from %v to %v", *status.InitialLoss, *status.EvalLoss)
			}
			c.check(t, status)
			c.use(t, s.export(answer.ID), filepath.Join(s.dir, c.file))
		})
	}
}

// ended waits for the end of a job.
func (s *site) ended(id string) (status api.JobStatus) {
	s.t.Helper()
	s.until("the end of the job", func(ctx context.Context) bool {
		var err error
		status, err = s.client.Job(ctx, id)
		return err == nil && status.State.Ended()
	})
	return status
}

// submitted submits a job with changes, and returns its name.
func (s *site) submitted(r api.SubmitRequest, set ...string) string {
	s.t.Helper()
	r.Set = slices.Concat(r.Set, set)
	answer, err := s.client.Submit(s.t.Context(), r)
	if err != nil {
		s.t.Fatal(err)
	}
	return answer.ID
}

// trained waits for the end of a job, which is to be a good one.
func (s *site) trained(id string) api.JobStatus {
	s.t.Helper()
	status := s.ended(id)
	if status.State != api.Done || status.EvalLoss == nil || status.InitialLoss == nil {
		s.t.Fatalf("the job is %s at step %d: %s", status.State, status.Step, status.Reason)
	}
	return status
}

// export writes a job's model to a directory, which it returns.
func (s *site) export(id string) string {
	s.t.Helper()
	dir := filepath.Join(s.dir, "model-"+id)
	if err := os.Mkdir(dir, 0o700); err != nil {
		s.t.Fatal(err)
	}
	var model bytes.Buffer
	if err := s.client.Model(s.t.Context(), id, &model); err != nil {
		s.t.Fatal(err)
	}
	for archive := tar.NewReader(&model); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return dir
		}
		if err != nil {
			s.t.Fatal(err)
		}
		content, err := io.ReadAll(archive)
		if err != nil {
			s.t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, filepath.Base(header.Name)), content, 0o600); err != nil {
			s.t.Fatal(err)
		}
	}
}
