package data

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/bmatcuk/doublestar/v4"

	"github.com/avgpipe/avgpipe/internal/access"
	"github.com/avgpipe/avgpipe/internal/nearest"
	"github.com/avgpipe/avgpipe/job"
)

// File is one file of a corpus.
type File struct {
	Path  string // absolute
	Name  string // relative to the directory that its pattern starts from, with slashes: the same wherever the corpus lies
	Bytes int64
	away  bool // there is no copy: Path is its URL
}

// Skipped counts what was passed over on the way, by what it is.
type Skipped map[string]int

const (
	hidden     = "hidden (a name that starts with a dot)" // where the pattern does not ask for them
	loop       = "links to a directory around them"
	broken     = "links to nothing"
	nonRegular = "neither files nor directories"
	empty      = "empty"
	vanished   = "removed while their directory was listed"
)

// Notes says what was skipped, one sentence for each kind; nil when nothing was.
func (s Skipped) Notes() []string {
	var notes []string
	for _, what := range slices.Sorted(maps.Keys(s)) {
		notes = append(notes, fmt.Sprintf("data.files: entries skipped for being %s: %d", what, s[what]))
	}
	return notes
}

// List expands the Files of a Config: a file stands for itself, a directory for every file below it, a glob pattern for
// the files it matches (*, ?, [a-z], {a,b} and ** across directories). Links are followed, unless to a directory that they
// lie in. It reads directories, not files. Files come by pattern, then by name in byte order; one that two patterns match comes once. An
// entry that matches nothing, or a path that cannot be read, is an *Error.
func List(ctx context.Context, c Config) ([]File, Skipped, error) {
	defer c.keepDirectories()()
	return c.list(ctx, "data.files", c.Files)
}

func (c *Config) list(ctx context.Context, key string, entries []string) (files []File, skipped Skipped, err error) {
	skipped = Skipped{}
	seen := map[string]bool{}
	for i, pattern := range entries {
		l := lister{ctx: ctx, access: c.Access, skipped: Skipped{}}
		if job.IsURL(pattern) {
			l.files, err = c.remote(pattern)
		} else {
			err = l.expand(filepath.Clean(pattern))
		}
		if err != nil {
			if ctx.Err() != nil {
				return nil, nil, fmt.Errorf("data: listing %s: %w", pattern, ctx.Err())
			}
			return nil, nil, &Error{Key: fmt.Sprintf("%s[%d]", key, i), Nearest: l.nearest, Err: err}
		}
		slices.SortFunc(l.files, func(a, b File) int { return cmp.Compare(a.Name, b.Name) })
		for _, f := range l.files {
			if !seen[f.Path] {
				seen[f.Path] = true
				files = append(files, f)
			}
		}
		for what, n := range l.skipped {
			skipped[what] += n
		}
	}
	return files, skipped, nil
}

type lister struct {
	ctx        context.Context // of one call of List
	access     *access.Opener
	pattern    string   // below the root; "" for everything
	components []string // of the pattern; nil when they do not tell which directories it can match in
	dots       bool     // whether the pattern asks for names that start with a dot
	files      []File
	looked     int // files that the pattern was held against
	skipped    Skipped
	nearest    string
}

func (l *lister) expand(entry string) error {
	root, pattern := doublestar.SplitPattern(filepath.ToSlash(entry))
	info, err := l.access.Stat(entry)
	switch {
	case err == nil && info.IsDir():
		root, pattern = entry, ""
	case err == nil: // also a file whose name looks like a pattern
		return l.single(entry, info)
	case !hasMeta(entry):
		return l.missing(entry, err)
	}
	if pattern != "" {
		if !doublestar.ValidatePattern(pattern) {
			return fmt.Errorf("%s is not a pattern: unbalanced brackets or braces", entry)
		}
		l.pattern = pattern
		l.dots = strings.HasPrefix(pattern, ".") || strings.Contains(pattern, "/.")
		if !strings.ContainsAny(pattern, "{\\") { // a brace can hold a slash
			l.components = strings.Split(pattern, "/")
		}
	}
	info, err = l.access.Stat(root)
	if err != nil {
		return l.missing(root, err)
	}
	if err := l.directory(root, "", []access.Info{info}); err != nil {
		return err
	}
	switch {
	case len(l.files) > 0:
		return nil
	case l.skipped[empty] > 0:
		return fmt.Errorf("%s has only empty files (%d)", entry, l.skipped[empty])
	case pattern == "":
		return absent(root, syscall.ENODATA, "%s has no files below it%s", entry, l.hint())
	case l.looked == 0:
		return absent(root, syscall.ENODATA, "%s matches nothing: there are no files below %s%s", entry, root, l.hint())
	}
	return fmt.Errorf("%s matches none of %d files below %s%s", entry, l.looked, root, l.hint())
}

// absentError says in words of its own that files are not there. Whoever wants to wait for them finds the path in the
// *fs.PathError that it wraps.
type absentError struct {
	text  string
	cause error
}

func (e *absentError) Error() string { return e.text }
func (e *absentError) Unwrap() error { return e.cause }

func absent(path string, errno syscall.Errno, format string, args ...any) error {
	return &absentError{fmt.Sprintf(format, args...), &fs.PathError{Op: "list", Path: path, Err: errno}}
}

func (l *lister) hint() string {
	if l.skipped[hidden] > 0 {
		return fmt.Sprintf(" (%d hidden entries are skipped; a pattern component that starts with a dot matches them)", l.skipped[hidden])
	}
	return ""
}

func hasMeta(path string) bool { return strings.ContainsAny(path, `*?[{\`) }

func (l *lister) single(path string, info access.Info) error {
	if !info.Mode.IsRegular() {
		return fmt.Errorf("%s is %s, not a file or a directory", path, access.Describe(info.Mode))
	}
	if info.Size == 0 {
		return fmt.Errorf("%s is empty", path)
	}
	return l.take(path, filepath.Base(path), info)
}

// missing reports a path that cannot be looked at, with the nearest name in its directory.
func (l *lister) missing(path string, err error) error {
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	gone := firstMissing(l.access, path)
	l.nearest = Nearest(l.access, path)
	if gone != path {
		return absent(path, syscall.ENOENT, "%s does not exist: there is no %s", path, gone)
	}
	return absent(path, syscall.ENOENT, "%s does not exist", path)
}

func firstMissing(opener *access.Opener, path string) string {
	dir := filepath.Dir(path)
	if info, err := opener.Stat(dir); err == nil && info.IsDir() || dir == path {
		return path
	}
	return firstMissing(opener, dir)
}

// Nearest is the path most like one that does not exist, in the directory where it would be; "" without one.
func Nearest(opener *access.Opener, path string) string {
	gone := firstMissing(opener, path)
	dir := filepath.Dir(gone)
	entries, err := opener.ReadDir(dir)
	if err != nil {
		return ""
	}
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	if near := nearest.Word(filepath.Base(gone), names); near != "" {
		return filepath.Join(dir, near)
	}
	return ""
}

// directory lists one directory and those below it. Around holds the directories that it lies in, itself last.
func (l *lister) directory(dir, name string, around []access.Info) error {
	if err := l.ctx.Err(); err != nil {
		return err
	}
	entries, err := l.access.ReadDir(dir)
	if gone(err) && name != "" {
		l.skipped[vanished]++
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".") && !l.dots {
			l.skipped[hidden]++
			continue
		}
		if err := l.entry(filepath.Join(dir, e.Name()), path.Join(name, e.Name()), e, around); err != nil {
			return err
		}
	}
	return nil
}

func (l *lister) entry(at, name string, e fs.DirEntry, around []access.Info) error {
	switch {
	case e.Type()&fs.ModeSymlink == 0 && !e.IsDir() && !l.matches(name):
		l.looked++
		return nil
	case e.IsDir() && !l.enters(name):
		return nil
	}
	info, err := l.access.Stat(at)
	switch {
	case err != nil && e.Type()&fs.ModeSymlink != 0 && (errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ELOOP)):
		l.skipped[broken]++
		return nil
	case gone(err):
		l.skipped[vanished]++
		return nil
	case err != nil:
		return err
	case info.IsDir():
		if !l.enters(name) {
			return nil
		}
		if slices.ContainsFunc(around, func(o access.Info) bool { return o.Same(info) }) {
			l.skipped[loop]++
			return nil
		}
		return l.directory(at, name, append(slices.Clip(around), info))
	}
	l.looked++
	switch {
	case !l.matches(name):
		return nil
	case !info.Mode.IsRegular():
		l.skipped[nonRegular]++
		return nil
	case info.Size == 0:
		l.skipped[empty]++
		return nil
	}
	return l.take(at, name, info)
}

// gone reports whether a name that was listed leads nowhere any more; of processes below /proc too.
func gone(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) }

func (l *lister) take(path, name string, info access.Info) error {
	if err := info.Readable(); err != nil {
		return err
	}
	l.files = append(l.files, File{Path: path, Name: name, Bytes: info.Size})
	return nil
}

func (l *lister) matches(name string) bool {
	if l.pattern == "" {
		return true
	}
	ok, err := doublestar.Match(l.pattern, name)
	return ok && err == nil
}

// enters reports whether the pattern can match below a directory whose parents it enters: up to the first **, the components have to
// match one by one.
func (l *lister) enters(name string) bool {
	depth := strings.Count(name, "/")
	if l.components == nil || slices.Contains(l.components[:min(depth+1, len(l.components))], "**") {
		return true
	}
	if depth+1 >= len(l.components) {
		return false
	}
	ok, err := doublestar.Match(l.components[depth], path.Base(name))
	return ok && err == nil
}
