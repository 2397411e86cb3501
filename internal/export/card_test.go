package export

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/job"
	"github.com/avgpipe/avgpipe/stage/model"
)

func TestACardIsReadAsItWasWritten(t *testing.T) {
	dir := t.TempDir()
	if _, found, err := ReadCard(nil, dir); found || err != nil {
		t.Errorf("a card where there is none: %v, error %v", found, err)
	}
	want := Card{
		Task: model.Classification, Sequence: 64, Data: job.Data{
			Files: []string{"/home/somebody/texts"}, Format: "text", Holdout: 0.1, Labels: []string{"ham", "spam"},
		},
	}
	digests, err := WriteCompanions(dir, want, map[string][]byte{TokenizerFile: []byte("{}")})
	if err != nil {
		t.Fatal(err)
	}
	files, err := ReadCompanions(dir, digests)
	if err != nil || len(files) != 2 || string(files[TokenizerFile]) != "{}" {
		t.Errorf("the files are %q (%v)", files, err)
	}
	if err := os.WriteFile(filepath.Join(dir, CardFile), files[CardFile], 0o600); err != nil {
		t.Fatal(err)
	}
	found, ok, err := ReadCard(nil, dir)
	want.Version, want.Data.Files, want.Data.Tokenizer = cardVersion, nil, TokenizerFile // where they lay is nobody's business
	if err != nil || !ok || !reflect.DeepEqual(found, want) {
		t.Errorf("read %+v (%v, %v), want %+v", found, ok, err, want)
	}
}

func TestADamagedCardIsRefused(t *testing.T) {
	for text, want := range map[string]string{"{": "avgpipe.json", `{"version": 2}`: "its version is 2"} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, CardFile), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, _, err := ReadCard(nil, dir); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %q", text, err, want)
		}
	}
}

func TestLabelsAreInTheOrderOfTheirNumbers(t *testing.T) {
	for text, want := range map[string]string{
		`{}`: "[]",
		`{"id2label": {"1": "b", "0": "a", "2": "c"}}`: "[a b c]",
	} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, ConfigFile), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if labels, err := Labels(dir); err != nil || fmt.Sprint(labels) != want {
			t.Errorf("%s: labels %v (%v), want %s", text, labels, err, want)
		}
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, ConfigFile), []byte(`{"id2label": {"0": "a", "2": "c"}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Labels(dir); err == nil || !strings.Contains(err.Error(), "none has the number 1") {
		t.Errorf("a gap in the numbers: %v", err)
	}
}

func TestAModelSaysWhatItsTokensAre(t *testing.T) {
	m := tiny(t, 11)
	for name, c := range map[string]struct {
		files map[string]string
		model *model.Model
		want  string // relative to the directory, or an error
	}{
		"its own file":                    {map[string]string{TokenizerFile: "{}"}, m, TokenizerFile},
		"a card without one":              {map[string]string{CardFile: `{"version": 1}`}, m, job.TokenizerBytes},
		"as many ids as bytes":            {nil, tiny(t, 256), job.TokenizerBytes},
		"neither, and ids that are words": {nil, m, " has no tokenizer.json, and 11 token ids are not bytes: save_pretrained of a fast tokenizer writes that file"},
	} {
		dir := t.TempDir()
		for file, text := range c.files {
			if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		found, err := TokenizerOf(nil, dir, c.model)
		found = strings.TrimPrefix(found, dir+"/")
		if err != nil {
			found = strings.TrimPrefix(err.Error(), dir)
		}
		if found != c.want {
			t.Errorf("%s: %q, want %q", name, found, c.want)
		}
	}
}

// tiny is a model with so many token ids.
func tiny(t *testing.T, ids int) *model.Model {
	t.Helper()
	m, err := model.Build("gpt2", map[string]any{"n_layer": 1, "n_head": 1, "n_embd": 2, "n_positions": 2, "vocab_size": ids})
	if err != nil {
		t.Fatal(err)
	}
	return m
}
