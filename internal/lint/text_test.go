package lint

import (
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/avgpipe/avgpipe/internal/envtest"
)

// forbidden is what no committed file says, and what to write instead. The patterns are put together from halves so that
// this file does not match itself.
var forbidden = []struct {
	pattern *regexp.Regexp
	instead string
}{
	{regexp.MustCompile(`\b(TO` + `DO|FIX` + `ME|XX` + `X)\b`), "finish it, or open an issue"},
	{regexp.MustCompile(`(^|[^\w./-])/(work|root|Users)` + `/\w`), "a path of one machine: derive it, or write an example under /home/USER"},
	{regexp.MustCompile(`\b(proxy|sum)\.go` + `lang\.org|go` + `proxy\.\w+|pypi\.` + `org|registry\.npm` + `js`), "leave the choice of a registry to the environment"},
	{regexp.MustCompile(`^(<<<<<` + `<< |>>>>>` + `>> )`), "resolve the conflict"},
}

// text reports whether people write the file by hand.
func text(name string) bool {
	byHand := []string{".go", ".c", ".h", ".md", ".sh", ".yml", ".yaml", ".conf", ".service", ".py", ".txt", ""}
	return slices.Contains(byHand, path.Ext(name)) && !strings.Contains(name, "testdata/")
}

func TestNothingForbiddenIsWritten(t *testing.T) {
	for _, name := range allFiles(t, text) {
		for i, line := range strings.Split(read(t, name), "\n") {
			for _, rule := range forbidden {
				if found := rule.pattern.FindString(line); found != "" {
					t.Errorf("%s:%d: %q: %s", name, i+1, strings.TrimSpace(found), rule.instead)
				}
			}
		}
	}
}

var (
	markdownLink = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	docMention   = regexp.MustCompile(`\bdocs/[\w./-]*\.md\b`)
	codeSpan     = regexp.MustCompile("`[^`]*`")
)

func TestLinksLeadSomewhere(t *testing.T) {
	markdown := func(name string) bool { return path.Ext(name) == ".md" }
	for _, name := range allFiles(t, markdown) {
		for _, line := range prose(read(t, name)) {
			for _, match := range markdownLink.FindAllStringSubmatch(line.text, -1) {
				if problem := follow(t, name, match[1]); problem != "" {
					t.Errorf("%s:%d: link to %s: %s", name, line.number, match[1], problem)
				}
			}
		}
	}
}

func TestDocumentsThatAreNamedExist(t *testing.T) {
	for _, name := range allFiles(t, text) {
		for i, line := range strings.Split(read(t, name), "\n") {
			for _, document := range docMention.FindAllString(line, -1) {
				if _, err := os.Stat(filepath.Join(root, document)); err != nil {
					t.Errorf("%s:%d: names %s, which does not exist", name, i+1, document)
				}
			}
		}
	}
}

// follow says what is wrong with a link in the file from, or nothing. Links to other hosts are not followed.
func follow(t *testing.T, from, link string) string {
	t.Helper()
	if strings.Contains(link, "://") {
		return ""
	}
	file, heading, _ := strings.Cut(link, "#")
	target := from
	if file != "" {
		target = path.Join(path.Dir(from), file)
	}
	if _, err := os.Stat(filepath.Join(root, target)); err != nil {
		return target + " does not exist"
	}
	if heading == "" {
		return ""
	}
	anchors := headings(read(t, target))
	if !slices.Contains(anchors, heading) {
		return target + " has no such heading, only: " + strings.Join(anchors, ", ")
	}
	return ""
}

// numbered is a line and where it stands.
type numbered struct {
	number int
	text   string
}

// prose returns the lines of a Markdown text outside of fenced code, code spans removed.
func prose(markdown string) []numbered {
	var lines []numbered
	fenced := false
	for i, line := range strings.Split(markdown, "\n") {
		if strings.HasPrefix(strings.TrimSpace(line), "```") {
			fenced = !fenced
			continue
		}
		if !fenced {
			lines = append(lines, numbered{i + 1, codeSpan.ReplaceAllString(line, "")})
		}
	}
	return lines
}

// headings returns the anchors that a Markdown text's headings get on the usual hosts: lower case, spaces to hyphens,
// punctuation dropped.
func headings(markdown string) []string {
	var anchors []string
	fenced := false
	for line := range strings.SplitSeq(markdown, "\n") {
		if strings.HasPrefix(line, "```") {
			fenced = !fenced
		}
		title, is := strings.CutPrefix(strings.TrimLeft(line, "#"), " ")
		if fenced || !is || !strings.HasPrefix(line, "#") {
			continue
		}
		anchors = append(anchors, strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r):
				return unicode.ToLower(r)
			}
			return -1
		}, title))
	}
	return anchors
}

// TestDecisionsAreNumberedAndListed, in the order of their numbers.
func TestDecisionsAreNumberedAndListed(t *testing.T) {
	decision := regexp.MustCompile(`^docs/decisions/(\d{4})-[a-z0-9-]+\.md$`)
	index := read(t, "docs/decisions/README.md")
	if rows := regexp.MustCompile(`(?m)^\| \d{4} `).FindAllString(index, -1); !slices.IsSorted(rows) {
		t.Error("docs/decisions/README.md does not list the decisions in the order of their numbers")
	}
	numbers := map[string]string{}
	for _, name := range allFiles(t, func(name string) bool { return path.Dir(name) == "docs/decisions" }) {
		if path.Base(name) == "README.md" {
			continue
		}
		match := decision.FindStringSubmatch(name)
		if match == nil {
			t.Errorf("%s: a decision is called NNNN-title-in-lower-case.md", name)
			continue
		}
		if other := numbers[match[1]]; other != "" {
			t.Errorf("%s and %s have the same number", other, name)
		}
		numbers[match[1]] = name
		if !strings.Contains(index, "("+path.Base(name)+")") {
			t.Errorf("docs/decisions/README.md does not list %s", path.Base(name))
		}
		for _, section := range []string{"## Context", "## Decision", "## Rejected"} {
			if !strings.Contains(read(t, name), "\n"+section) {
				t.Errorf("%s has no section %q", name, section)
			}
		}
	}
}

func TestChangesAreSaidInOneForm(t *testing.T) {
	form := regexp.MustCompile(`^kind: (enhancement|change|fix|security)\n\n[A-Za-z][^\n]*[^.\n]\n\n[^\n]+\n`)
	for _, name := range allFiles(t, func(name string) bool { return path.Dir(name) == "changelog/unreleased" }) {
		if !form.MatchString(read(t, name)) {
			t.Errorf("%s: not in the form that changelog/README.md shows", name)
		}
	}
}

func TestShellScriptsParse(t *testing.T) {
	requireTool(t, "bash")
	shell := func(name string) bool { return path.Ext(name) == ".sh" || name == ".ci/run" }
	for _, name := range allFiles(t, shell) {
		body := read(t, name)
		if !strings.HasPrefix(body, "#!") || !strings.Contains(body, "\nset -euo pipefail\n") {
			t.Errorf("%s: a script begins with #! and stops at its first failure: set -euo pipefail", name)
		}
		command := exec.CommandContext(t.Context(), "bash", "-n", filepath.Join(root, name))
		if output, err := command.CombinedOutput(); err != nil {
			t.Errorf("bash -n %s: %v\n%s", name, err, output)
		}
	}
}

// requireTool skips the test on a developer's machine that lacks a tool. In CI, which installs them, it fails.
func requireTool(t *testing.T, name string) {
	t.Helper()
	if _, err := exec.LookPath(name); err == nil {
		return
	}
	envtest.Missing(t, "%s is not installed: `make test-deps` installs it", name)
}
