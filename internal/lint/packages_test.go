package lint

import (
	"go/ast"
	"maps"
	"path"
	"slices"
	"strings"
	"testing"
)

const (
	mostFunctionLines = 80
	mostFileLines     = 500
)

func TestEachPackageHasOnePackageDoc(t *testing.T) {
	docs := map[string][]string{} // directory -> its files with a package doc
	for _, s := range allSources(t) {
		if s.test() {
			continue
		}
		if s.tree.Doc == nil {
			docs[s.dir()] = append(docs[s.dir()], nil...) // the package is there
			continue
		}
		docs[s.dir()] = append(docs[s.dir()], s.name)
		if text := s.tree.Doc.Text(); !beginsWithName(text, s) {
			t.Errorf("%s: the package doc begins %.30q, and not with the package's name", s.name, text)
		}
	}
	for _, dir := range slices.Sorted(maps.Keys(docs)) {
		switch len(docs[dir]) {
		case 0:
			t.Errorf("%s: no file has a package doc", dir)
		case 1:
		default:
			t.Errorf("%s: more than one file has a package doc: %s", dir, strings.Join(docs[dir], ", "))
		}
	}
}

// beginsWithName reports whether a doc begins as Go's convention has it: "Package NAME ", and for a program "NAME ", with a
// capital, or "Command NAME ".
func beginsWithName(doc string, s source) bool {
	name := s.tree.Name.Name
	if name != "main" {
		return strings.HasPrefix(doc, "Package "+name+" ")
	}
	program := path.Base(s.dir())
	capital := strings.ToUpper(program[:1]) + program[1:]
	return strings.HasPrefix(doc, capital+" ") || strings.HasPrefix(doc, "Command "+program+" ")
}

func TestFunctionsFitAScreen(t *testing.T) {
	for _, s := range allSources(t) {
		for _, declaration := range s.tree.Decls {
			function, is := declaration.(*ast.FuncDecl)
			if !is || s.test() {
				continue
			}
			lines := s.set.Position(function.End()).Line - s.set.Position(function.Pos()).Line + 1
			if lines > mostFunctionLines {
				t.Errorf("%s: func %s has %d lines, at most %d fit a screen", s.at(function), function.Name.Name, lines, mostFunctionLines)
			}
		}
	}
}

func TestFilesAreShort(t *testing.T) {
	code := func(name string) bool {
		return slices.Contains([]string{".go", ".c", ".h", ".sh", ".py"}, path.Ext(name)) && !strings.Contains(name, "testdata/")
	}
	for _, name := range allFiles(t, code) {
		if lines := strings.Count(read(t, name), "\n"); lines > mostFileLines {
			t.Errorf("%s has %d lines, at most %d: split it by what it is about", name, lines, mostFileLines)
		}
	}
}

// Schedules, methods, models and verbs stand in plain tables: one place to look, and no order of imports to think of.
func TestNothingRegistersItself(t *testing.T) {
	for _, s := range allSources(t) {
		for _, declaration := range s.tree.Decls {
			if function, is := declaration.(*ast.FuncDecl); is && function.Recv == nil && function.Name.Name == "init" {
				t.Errorf("%s: func init: put what it sets up into a table or a constructor", s.at(function))
			}
		}
	}
}

// readsEnvironment are the functions of package os that look a variable up. Handing the whole environment on to a child
// (os.Environ) is something else.
var readsEnvironment = []string{"Getenv", "LookupEnv", "ExpandEnv"}

// The environment is a program's input, so the programs read it and pass on what it says.
func TestOnlyProgramsReadTheEnvironment(t *testing.T) {
	for _, s := range allSources(t) {
		if s.test() || forTests(s.dir()) || strings.HasPrefix(s.name, "cmd/") {
			continue
		}
		ast.Inspect(s.tree, func(n ast.Node) bool {
			selector, is := n.(*ast.SelectorExpr)
			if !is || !slices.Contains(readsEnvironment, selector.Sel.Name) {
				return true
			}
			if from, is := selector.X.(*ast.Ident); is && from.Name == "os" {
				t.Errorf("%s: os.%s: read the environment in cmd/ and pass the value on in a Config", s.at(selector), selector.Sel.Name)
			}
			return true
		})
	}
}
