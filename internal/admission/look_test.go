package admission

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/internal/agent"
	"github.com/avgpipe/avgpipe/internal/spec"
)

// TestWhatAJobReadsIsLookedFor: files that are gone, or have other lengths or contents than when the job was submitted, are told apart.
func TestWhatAJobReadsIsLookedFor(t *testing.T) {
	for name, c := range map[string]struct {
		file, text  string // what becomes of a file; "": it is removed
		data, model string // what is said, in part
	}{
		"nothing has changed": {"x", "a b a b a b a b a b", "", ""},
		"no data":             {"x", "", "data.files[0]: ", ""},
		"longer data":         {"x", "a b a b a b a b a b a b", "the names or lengths of the files are not those of when the job was submitted", ""},
		"another tokenizer":   {"tokenizer.json", strings.Replace(tokens, `"b": 1`, `"c": 1`, 1), "data.tokenizer: ", ""},
		"no weights":          {"model.safetensors", "", "", "model.from: "},
		"an unrelated file":   {"y", "y", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			base, q, _, _ := beginsWith(t)
			s, err := Admit(t.Context(), q, func(string) {})
			if err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(base, c.file)
			if err = os.WriteFile(path, []byte(c.text), 0o600); c.text == "" {
				err = os.Remove(path)
			}
			if err != nil {
				t.Fatal(err)
			}
			text, err := spec.Encode(s)
			if err != nil {
				t.Fatal(err)
			}
			got, err := look(t.Context(), &Request{Spec: text}, func(string) {})
			if err != nil || !strings.Contains(got.Data, c.data) || (got.Data == "") != (c.data == "") || !strings.Contains(got.Model, c.model) || (got.Model == "") != (c.model == "") {
				t.Errorf("found %+v (%v), expected %q and %q", got, err, c.data, c.model)
			}
		})
	}
}

// TestALookIsAnsweredByAProcess, and one that fails says that nobody knows.
func TestALookIsAnsweredByAProcess(t *testing.T) {
	got, err := shell(`echo '{"opens":"/data/x"}'; echo '{"sight":{"data":"gone"}}'`).Look(t.Context(), &spec.Spec{})
	if err != nil || got != (agent.Sight{Data: "gone"}) {
		t.Errorf("found %+v (%v)", got, err)
	}
	for script, want := range map[string]string{
		`echo '{"failed":"the disk"}'`:           "the disk",
		`exit 3`:                                 "exit status 3",
		`echo '{"opens":"/data/x"}'; exit 3`:     "reading /data/x ended the process that did it",
		`echo '{"refused":{"error":"refused"}}'`: "another answer",
	} {
		if _, err := shell(script).Look(t.Context(), &spec.Spec{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, expected %q", script, err, want)
		}
	}
}
