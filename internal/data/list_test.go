package data

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/avgpipe/avgpipe/internal/access"
)

func names(t *testing.T, dir string, patterns ...string) ([]string, Skipped) {
	t.Helper()
	for i := range patterns {
		patterns[i] = dir + "/" + patterns[i]
	}
	files, skipped, err := List(t.Context(), Config{Files: patterns})
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, f := range files {
		out = append(out, f.Name)
	}
	return out, skipped
}

func TestPatterns(t *testing.T) {
	dir := corpus(t, map[string]string{
		"a.go": "1", "b.txt": "2", "sub/c.go": "3", "sub/deep/d.go": "4", ".git/e.go": "5", "sub/.f.go": "6", "[g].go": "7",
	})
	for pattern, want := range map[string]string{
		"*.go":              "[g].go a.go",
		"**/*.go":           "[g].go a.go sub/c.go sub/deep/d.go",
		"sub/**/*.go":       "c.go deep/d.go",
		"*/*.go":            "sub/c.go",
		"*/**/*.go":         "sub/c.go sub/deep/d.go",
		"{sub/deep/d,a}.go": "a.go sub/deep/d.go",
		"**/[a-c]*":         "a.go b.txt sub/c.go",
		"sub":               "c.go deep/d.go",
		"":                  "[g].go a.go b.txt sub/c.go sub/deep/d.go",
		"**/.*":             "sub/.f.go",
		".git/*.go":         "e.go",
		".git":              "e.go",
		"[g].go":            "[g].go", // a file of that very name
		"?.txt":             "b.txt",
	} {
		if got, _ := names(t, dir, pattern); strings.Join(got, " ") != want {
			t.Errorf("%q gives %v, want %s", pattern, got, want)
		}
	}
}

// TestPatternsKeepTheirOrder: files come by pattern, then by name, each once.
func TestPatternsKeepTheirOrder(t *testing.T) {
	dir := corpus(t, map[string]string{"a/x": "1", "b/x": "2", "b/y": "3"})
	files, _, err := List(t.Context(), Config{Files: []string{dir + "/b/y", dir + "/b", dir + "/a/*"}})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range files {
		got = append(got, strings.TrimPrefix(f.Path, dir)+"="+f.Name)
	}
	if want := []string{"/b/y=y", "/b/x=x", "/a/x=x"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// TestLinks: links are followed, but not around in circles, and what is no file is counted.
func TestLinks(t *testing.T) {
	dir := corpus(t, map[string]string{"real/a": "1", "real/sub/b": "2", "real/empty": "", "other/c": "3", "real/.h": "4"})
	for link, target := range map[string]string{
		"real/loop": "..", "real/sub/self": ".", "real/file": "../other/c", "real/dir": "../other", "real/broken": "nowhere",
		"real/circle": "circle",
	} {
		if err := os.Symlink(target, filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	if err := syscall.Mkfifo(filepath.Join(dir, "real/pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	got, skipped := names(t, dir, "real")
	// loop leads to the directory above, from where real is entered by another name, once.
	want := []string{"a", "dir/c", "file", "loop/other/c", "sub/b"}
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if want := (Skipped{broken: 2, nonRegular: 1, empty: 1, hidden: 1, loop: 2}); !maps.Equal(skipped, want) {
		t.Errorf("skipped %+v, want %+v", skipped, want)
	}
	if notes := skipped.Notes(); len(notes) != 5 || !strings.Contains(notes[1], "skipped for being hidden (a name that starts with a dot): 1") {
		t.Errorf("notes %q", notes)
	}
	if notes := (Skipped{}).Notes(); notes != nil {
		t.Errorf("nothing was skipped, the notes say %q", notes)
	}
	_, _, err := List(t.Context(), Config{Files: []string{dir + "/real/pipe"}})
	if err == nil || !strings.Contains(err.Error(), "is a pipe") {
		t.Errorf("a pipe by name: %v", err)
	}
}

func TestListingStopsWhenCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	dir := corpus(t, map[string]string{"a": "1"})
	if _, _, err := List(ctx, Config{Files: []string{dir}}); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
}

// TestWhatVanishesWhileItIsListedIsSkipped: files and directories of a tree that others change, such as a cache.
func TestWhatVanishesWhileItIsListedIsSkipped(t *testing.T) {
	dir := corpus(t, map[string]string{"a": "1", "sub/b": "2", "z": "3"})
	opener := &access.Opener{OnOpen: func(path string) {
		if path == dir+"/sub" {
			if err := errors.Join(os.RemoveAll(path), os.Remove(dir+"/z")); err != nil {
				t.Error(err)
			}
		}
	}}
	files, skipped, err := List(t.Context(), Config{Files: []string{dir}, Access: opener})
	if err != nil || len(files) != 1 || !maps.Equal(skipped, Skipped{vanished: 2}) {
		t.Errorf("%v %v, error %v", files, skipped, err)
	}
}
