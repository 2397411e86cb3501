package worker

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/avgpipe/avgpipe/internal/worker/control"
)

func TestTwoWorkersNeverTrainInOneDirectory(t *testing.T) {
	a := setup(t, 1, 1, nil)
	text, err := json.Marshal(a)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(a.Dir, "assignment.json")
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	held, err := lockDir(a.Dir)
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	if code, err := Run(t.Context(), Config{Assignment: path, Log: io.Discard}); code != control.ExitBusy || !errors.Is(err, errBusy) {
		t.Errorf("a second worker ended with %d, %v; want %d, %v", code, err, control.ExitBusy, errBusy)
	}
}
