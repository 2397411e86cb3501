package schedule

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// drawn is the plan in the comment of each schedule: three stages, six micro-batches, and a link as slow as a forward.
var drawn = Request{Stages: 3, MicroBatches: 6}

// TestCommentOfEachScheduleIsItsDrawing holds the drawing in each generator's comment to what the tool draws.
func TestCommentOfEachScheduleIsItsDrawing(t *testing.T) {
	sources := readSources(t)
	for _, name := range Names() {
		costs := Uniform(drawn.Stages, 1, 1, 1)
		plan := mustGenerate(t, name, drawn)
		drawing := asComment(DrawText(plan, mustSimulate(t, plan, costs), 0))
		if !strings.Contains(sources, drawing) {
			t.Errorf("no comment has the drawing of %s:\n%s", name, drawing)
		}
	}
}

func asComment(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		b.WriteString("//\t" + strings.TrimRight(line, "\n") + "\n")
	}
	return b.String()
}

// readSources is all Go source of the package but its tests.
func readSources(t *testing.T) string {
	t.Helper()
	paths, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for _, path := range paths {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		source, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		b.Write(source)
	}
	return b.String()
}
