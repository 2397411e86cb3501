package lint

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

const (
	module = "github.com/avgpipe/avgpipe"
	root   = "../.." // of the repository, seen from this package
)

// notOurs are the directories, from the root, that hold what was built or downloaded.
var notOurs = []string{".git", ".cache", "bin", "build", "examples/data"}

// files lists every file of the repository, as slash-separated paths from its root.
var files = sync.OnceValues(func() ([]string, error) {
	var list []string
	err := filepath.WalkDir(root, func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, name)
		if err != nil {
			return err
		}
		rel = filepath.ToSlash(rel)
		if entry.IsDir() && slices.Contains(notOurs, rel) {
			return fs.SkipDir
		}
		if entry.Type().IsRegular() {
			list = append(list, rel)
		}
		return nil
	})
	return list, err
})

// allFiles returns the files for which keep holds. A rule that applies to nothing is a rule that has broken, so an empty
// result fails the test.
func allFiles(t *testing.T, keep func(name string) bool) []string {
	t.Helper()
	list, err := files()
	if err != nil {
		t.Fatalf("list the repository: %v", err)
	}
	var kept []string
	for _, name := range list {
		if keep(name) {
			kept = append(kept, name)
		}
	}
	if len(kept) == 0 {
		t.Fatal("no file of the repository is left to check")
	}
	return kept
}

// read returns the text of a file of the repository.
func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(name)))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// source is one parsed Go file.
type source struct {
	name string // from the root: "schedule/plan.go"
	tree *ast.File
	set  *token.FileSet
}

func (s source) test() bool  { return strings.HasSuffix(s.name, "_test.go") }
func (s source) dir() string { return path.Dir(s.name) }
func (s source) at(p ast.Node) string {
	return s.name + ":" + strconv.Itoa(s.set.Position(p.Pos()).Line)
}

// imports lists the import paths of the file.
func (s source) imports() []string {
	list := make([]string, len(s.tree.Imports))
	for i, spec := range s.tree.Imports {
		list[i] = strings.Trim(spec.Path.Value, `"`)
	}
	return list
}

// sources are all Go files of the repository, whatever their build tags, without those in testdata.
var sources = sync.OnceValues(func() ([]source, error) {
	list, err := files()
	if err != nil {
		return nil, err
	}
	var parsed []source
	for _, name := range list {
		if !strings.HasSuffix(name, ".go") || strings.Contains(name, "testdata/") {
			continue
		}
		set := token.NewFileSet()
		tree, err := parser.ParseFile(set, filepath.Join(root, name), nil, parser.ParseComments)
		if err != nil {
			return nil, err
		}
		parsed = append(parsed, source{name: name, tree: tree, set: set})
	}
	return parsed, nil
})

// allSources returns all Go files of the repository.
func allSources(t *testing.T) []source {
	t.Helper()
	list, err := sources()
	if err != nil {
		t.Fatalf("parse the repository: %v", err)
	}
	return list
}
