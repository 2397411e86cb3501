package jobfile

import (
	"strings"
	"testing"
)

const source = `version: 1
name: x
model: {family: gpt2, config: {n_layer: 2, n_head: 2, n_embd: 8}}
data: {files: [x]}
optimizer: {name: sgd, lr: 1}
train: {steps: 1, batch: 1}
`

// TestNamesAndTheModelsConfigAreChecked, at their place in the file, where the command line has no daemon either.
func TestNamesAndTheModelsConfigAreChecked(t *testing.T) {
	for set, want := range map[string]string{
		"":                                     "",
		"schedule=afb":                         "schedule wants one of",
		"model.family=gtp2":                    "nearest: gpt2",
		"averaging.method=elastc":              "nearest: elastic",
		"model.config.n_layers=2":              "unknown key \"n_layers\"; model.config allows activation_function, ",
		"model.config.n_layer=-2":              "model.config.n_layer is -2; allowed is an integer from 1 to 16384\n  1 | --set model.config.n_layer=-2\n    |                            ^\n  nearest: 1",
		"model.config.n_head=0":                "nearest: 1",
		"model.config.n_embd=9":                "nearest: n_embd 8",
		"model.config.n_layer=.nan":            "model.config.n_layer is NaN; allowed is an integer\n  1 | --set model.config.n_layer=.nan\n    |                            ^\n  nearest: 12",
		"model.config.layer_norm_epsilon=.inf": "model.config.layer_norm_epsilon is +Inf; allowed is a number\n  1 | --set model.config.layer_norm_epsilon=.inf\n    |                                       ^\n  nearest: 1e-05",
		"model.config.n_layer=1e12":            "allowed is an integer from 1 to 16384",
		"model.config={n_layer: 'two'}":        "model.config.n_layer is two; allowed is an integer",
	} {
		var sets []string
		if set != "" {
			sets = []string{set}
		}
		j, m, at := Parse("job.yaml", []byte(source), sets, nil)
		switch err := at.Err(); {
		case want == "" && (err != nil || j == nil || m == nil):
			t.Errorf("a right file: %v", err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want) || m != nil):
			t.Errorf("%s: %v, want %q", set, err, want)
		}
	}
}
