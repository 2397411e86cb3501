package control

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func write(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file.json")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestFilesThatNoDaemonWrites(t *testing.T) {
	for text, want := range map[string]string{
		`{"version": 3}`: "version 3, this program reads 4", `{"version": 5}`: "version 5, this program reads 4",
		`{}`: "version 0", `[`: "unexpected end", `{"version": 4, "jub": "1"}`: `unknown field "jub"`,
		`{"version": 4, "spec": {"version": 4, "jub": {}}}`: `unknown field "jub"`,
	} {
		if _, err := ReadAssignment(write(t, text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}
