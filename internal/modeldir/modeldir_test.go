package modeldir

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/internal/checkpoint"
)

var (
	oldModel = map[string]string{"config.json": "old", "model.safetensors": "old weights", "tokenizer.json": "old"}
	newModel = map[string]string{"config.json": "new", "model-00001.safetensors": "1", "model-00002.safetensors": "2", "tokenizer.json": "new"}
)

// put writes files into a directory.
func put(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// export writes a model as its caller would.
func export(t *testing.T, dir string, force bool, files map[string]string) error {
	t.Helper()
	return Write(dir, force, Source{Job: "7", Name: "my-job"}, func(staging string) error {
		put(t, staging, files)
		return nil
	})
}

// tree returns every file below a directory with its content; links as what they point to.
func tree(t *testing.T, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		if e.Type()&fs.ModeSymlink != 0 {
			target, err := os.Readlink(path)
			files[path] = "-> " + target
			return err
		}
		text, err := os.ReadFile(path)
		files[path] = string(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// holds fails the test unless a directory holds a model and its manifest, and nothing else.
func holds(t *testing.T, dir string, model map[string]string) {
	t.Helper()
	want := map[string]string{}
	for name, content := range model {
		want[filepath.Join(dir, name)] = content
	}
	got := tree(t, dir)
	delete(got, filepath.Join(dir, ManifestFile))
	if !maps.Equal(got, want) {
		t.Errorf("%s holds %v, want %v", dir, got, want)
	}
	if m, err := readManifest(dir); err != nil || m == nil || !m.Complete || len(m.Files) != len(model) {
		t.Errorf("the manifest of %s: %+v, %v", dir, m, err)
	}
}

func TestAnExportReplacesAnEarlierOneAndNothingElse(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "model")
	if err := export(t, dir, false, oldModel); err != nil {
		t.Fatal(err)
	}
	holds(t, dir, oldModel)
	if err := export(t, dir, false, newModel); err == nil || !strings.Contains(err.Error(), "job 7 (my-job)") || !strings.Contains(err.Error(), "--force") {
		t.Errorf("an export over another without force: %v", err)
	}
	holds(t, dir, oldModel)
	if err := export(t, dir, true, newModel); err != nil {
		t.Fatal(err)
	}
	holds(t, dir, newModel)
	empty := t.TempDir()
	if err := export(t, empty, false, newModel); err != nil {
		t.Error("an empty directory is refused:", err)
	}
	holds(t, empty, newModel)
}

// TestWhatNoExportWroteStays exports with force over what somebody else put there: it is refused, named, and as it was.
func TestWhatNoExportWroteStays(t *testing.T) {
	mkdir := func(t *testing.T, path string) {
		if err := os.MkdirAll(path, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	exported := func(t *testing.T, dir string) {
		if err := export(t, dir, false, oldModel); err != nil {
			t.Fatal(err)
		}
	}
	for name, c := range map[string]struct {
		prepare func(t *testing.T, dir string)
		says    string
	}{
		"a thesis":            {func(t *testing.T, dir string) { mkdir(t, dir); put(t, dir, map[string]string{"thesis.tex": "years"}) }, "thesis.tex"},
		"an older export":     {func(t *testing.T, dir string) { mkdir(t, dir); put(t, dir, oldModel) }, ManifestFile},
		"a note in an export": {func(t *testing.T, dir string) { exported(t, dir); put(t, dir, map[string]string{"notes.md": "mine"}) }, "notes.md"},
		"a directory in one":  {func(t *testing.T, dir string) { exported(t, dir); mkdir(t, filepath.Join(dir, "runs")) }, "runs/"},
		"an edited config": {func(t *testing.T, dir string) {
			exported(t, dir)
			put(t, dir, map[string]string{"config.json": "edited"})
		}, "config.json"},
		"a damaged manifest": {func(t *testing.T, dir string) { exported(t, dir); put(t, dir, map[string]string{ManifestFile: "{"}) }, ManifestFile},
		"somebody's json": {func(t *testing.T, dir string) {
			mkdir(t, dir)
			put(t, dir, map[string]string{ManifestFile: `{"files": []}`})
		}, "magic"},
		"a later version": {func(t *testing.T, dir string) {
			mkdir(t, dir)
			put(t, dir, map[string]string{ManifestFile: `{"magic": "AVGEXPORT", "version": 2}`})
		}, "version is 2"},
		"a path in a manifest": {func(t *testing.T, dir string) {
			mkdir(t, dir)
			put(t, dir, map[string]string{ManifestFile: `{"magic": "AVGEXPORT", "version": 1, "files": [{"name": "../x"}]}`})
		}, "../x"},
		"a file": {func(t *testing.T, dir string) { put(t, filepath.Dir(dir), map[string]string{"model": "a file"}) }, "not a directory"},
		"a link in an export": {func(t *testing.T, dir string) {
			exported(t, dir)
			if err := errors.Join(os.Remove(filepath.Join(dir, "tokenizer.json")), os.Symlink("/etc/passwd", filepath.Join(dir, "tokenizer.json"))); err != nil {
				t.Fatal(err)
			}
		}, "tokenizer.json"},
		"a link to an export": {func(t *testing.T, dir string) {
			exported(t, filepath.Join(filepath.Dir(dir), "real"))
			if err := os.Symlink("real", dir); err != nil {
				t.Fatal(err)
			}
		}, "symbolic link to real"},
		"a link to nothing": {func(t *testing.T, dir string) {
			if err := os.Symlink("nothing", dir); err != nil {
				t.Fatal(err)
			}
		}, "symbolic link to nothing"},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			dir := filepath.Join(root, "model")
			c.prepare(t, dir)
			before := tree(t, root)
			check := Check(dir, true)
			err := export(t, dir, true, newModel)
			if _, ok := errors.AsType[*Refusal](err); !ok || !strings.Contains(err.Error(), c.says) || check == nil || check.Error() != err.Error() {
				t.Errorf("refused with %v, checked with %v; want %q", err, check, c.says)
			}
			if after := tree(t, root); !maps.Equal(before, after) {
				t.Errorf("before %v\nafter %v", before, after)
			}
		})
	}
}

func TestAFailedExportLeavesThingsAsTheyWere(t *testing.T) {
	root := t.TempDir()
	dir := filepath.Join(root, "model")
	broken := errors.New("the connection broke")
	fill := func(staging string) error {
		put(t, staging, map[string]string{"config.json": "new"})
		return broken
	}
	if err := Write(dir, false, Source{}, fill); !errors.Is(err, broken) {
		t.Error(err)
	}
	if entries, err := os.ReadDir(root); err != nil || len(entries) > 0 {
		t.Errorf("left behind: %v, %v", entries, err)
	}
	if err := export(t, dir, false, oldModel); err != nil {
		t.Fatal(err)
	}
	if err := Write(dir, true, Source{}, fill); !errors.Is(err, broken) {
		t.Error(err)
	}
	holds(t, dir, oldModel)
}

// TestAnInterruptedExportIsOldOrNewOrSaysSo stops a replacement after each of its steps, and finishes it later.
func TestAnInterruptedExportIsOldOrNewOrSaysSo(t *testing.T) {
	for done := 0; ; done++ {
		dir := filepath.Join(t.TempDir(), "model")
		if err := export(t, dir, false, oldModel); err != nil {
			t.Fatal(err)
		}
		s, err := newStaging(dir)
		if err != nil {
			t.Fatal(err)
		}
		put(t, s.dir, newModel)
		fresh, err := s.describe()
		if err != nil {
			t.Fatal(err)
		}
		there, err := look(dir, true, filepath.Base(s.dir))
		if err != nil {
			t.Fatal(err)
		}
		steps := s.replace(dir, Source{}, there.old, fresh)
		for _, step := range steps[:done] {
			if err := step(); err != nil {
				t.Fatal(err)
			}
		}
		if err := Check(dir, true); err == nil {
			t.Error("two exports may write into one directory at once")
		}
		if err := s.lock.Close(); err != nil { // as when it is killed
			t.Fatal(err)
		}
		model := map[string]string{}
		for path, content := range tree(t, dir) {
			if filepath.Dir(path) == dir && filepath.Base(path) != ManifestFile {
				model[filepath.Base(path)] = content
			}
		}
		_, loads := model[entry]
		whole := maps.Equal(model, oldModel) || maps.Equal(model, newModel)
		if loads && !whole || !loads && !Interrupted(dir) {
			t.Errorf("after %d steps: %v, interrupted: %v", done, slices.Sorted(maps.Keys(model)), Interrupted(dir))
		}
		if done > 0 && done < len(steps) {
			if err := export(t, dir, false, newModel); err == nil || !strings.Contains(err.Error(), "interrupted; finish it with --force") {
				t.Errorf("after %d steps: %v", done, err)
			}
		}
		if err := export(t, dir, true, newModel); err != nil {
			t.Errorf("after %d steps the next export fails: %v", done, err)
		}
		holds(t, dir, newModel)
		if done == len(steps) {
			return
		}
	}
}

// FuzzDecode gives the reader any text. What it takes names only files inside of the directory.
func FuzzDecode(f *testing.F) {
	text, err := manifest{Source: Source{Job: "7"}, Complete: true, Files: []file{{Name: "config.json", Bytes: 3, SHA256: "ab"}}}.encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Add([]byte(`{"magic": "AVGEXPORT", "version": 1, "files": [{"name": "../x"}]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		m, err := decode(text)
		if err != nil {
			return
		}
		for _, file := range m.Files {
			if filepath.Base(file.Name) != file.Name || strings.HasPrefix(file.Name, checkpoint.TempPrefix+"/") {
				t.Errorf("a manifest may name %q", file.Name)
			}
		}
	})
}
