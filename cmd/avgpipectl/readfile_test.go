package main

import (
	"bytes"
	"strings"
	"testing"
)

// Files that never end are refused where a user may name one.
func TestEndlessFilesAreRefused(t *testing.T) {
	for _, args := range [][]string{
		{"plan", "compare", "-f", "/dev/zero"},
		{"plan", "check", "/dev/zero"},
		{"plan", "show", "--file", "/dev/zero"},
		{"submit", "/dev/zero"},
		{"tune", "/dev/zero"},
	} {
		var out, messages bytes.Buffer
		code := run(t.Context(), args, strings.NewReader(""), &out, &messages)
		if code != exitRefused || !strings.Contains(messages.String(), "/dev/zero has more than ") {
			t.Errorf("avgpipectl %s: exit code %d: %s", strings.Join(args, " "), code, messages.String())
		}
	}
}
