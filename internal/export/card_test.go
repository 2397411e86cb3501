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
	dir := filepath.Join(t.TempDir(), "model")
	if _, found, err := ReadCard(dir); found || err != nil {
		t.Errorf("a card where there is none: %v, error %v", found, err)
	}
	want := Card{
		Task: model.Classification, Sequence: 64, Data: job.Data{
			Files: []string{"/home/somebody/texts"}, Format: "text", Holdout: 0.1, Labels: []string{"ham", "spam"},
		},
	}
	if err := WriteBeside(dir, want, []byte("{}")); err != nil {
		t.Fatal(err)
	}
	found, ok, err := ReadCard(dir)
	want.Version, want.Data.Files, want.Data.Tokenizer = cardVersion, nil, TokenizerFile // where they lay is nobody's business
	want.Read = readingOf(want.Data)
	if err != nil || !ok || !reflect.DeepEqual(found, want) {
		t.Errorf("read %+v (%v, %v), want %+v", found, ok, err, want)
	}
	if text, err := readBeside(dir, TokenizerFile); err != nil || string(text) != "{}" {
		t.Errorf("the tokenizer is %q (%v)", text, err)
	}
}

func TestADamagedCardIsRefused(t *testing.T) {
	for text, want := range map[string]string{"{": "avgpipe.json", `{"version": 2}`: "its version is 2"} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, CardFile), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, _, err := ReadCard(dir); err == nil || !strings.Contains(err.Error(), want) {
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
