package main

import (
	"bytes"
	"strings"
	"testing"
)

// What a shell asks for is answered without a daemon: keys and words of job files, and values of flags.
func TestCompletionOffersKeysAndValues(t *testing.T) {
	for _, c := range []struct {
		args, want, not string
	}{
		{"submit --set train.st", "train.steps=\t", "optimizer.lr"},
		{"tune --set averaging.pull=", "averaging.pull=predicted\naveraging.pull=new\n", "train.steps"},
		{"submit --set schedule=", "schedule=1f1b\n", "train.steps"},
		{"tokenize --format ", "jsonl\n", "1f1b"},
		{"plan show --schedule ", "zb-h1\n", "jsonl"},
		{"logs --level ", "warn\n", "jsonl"},
		{"history --output ", "svg\n", "warn"},
		{"status --output ", "json\n", "svg"},
	} {
		var out, messages bytes.Buffer
		code := run(t.Context(), append([]string{"__complete"}, strings.Split(c.args, " ")...), strings.NewReader(""), &out, &messages)
		if code != exitDone || !strings.Contains(out.String(), c.want) || strings.Contains(out.String(), c.not) {
			t.Errorf("%s: exit code %d, %q, want %q and not %q: %s", c.args, code, out.String(), c.want, c.not, messages.String())
		}
	}
}
