package modeldir

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/avgpipe/avgpipe/internal/checkpoint"
)

// entry is the file that makes a directory a model: without it nothing loads.
const entry = "config.json"

const mostNamed = 8

// Refusal reports why nothing is written to a directory. Nothing was changed.
type Refusal struct {
	Dir    string
	Why    string // what is in the way
	Remedy string
}

func (r *Refusal) Error() string { return r.Dir + " " + r.Why + "; " + r.Remedy }

// Check reports whether Write would take a directory. What is in the way is a *Refusal.
func Check(dir string, force bool) error {
	_, err := look(dir, force, "")
	return err
}

// Interrupted reports whether an export into a directory was interrupted, so that it holds no whole model.
func Interrupted(dir string) bool { return interrupted(dir) != nil }

// InterruptedFrom reports whether that was an export from a source.
func InterruptedFrom(dir string, from Source) bool {
	m := interrupted(dir)
	return m != nil && m.Source == from
}

// interrupted is the manifest of an export that was interrupted; nil when there is none.
func interrupted(dir string) *manifest {
	if m, err := readManifest(dir); err == nil && m != nil && !m.Complete {
		return m
	}
	return nil
}

// Write writes a model into a directory, which is made when it is missing. fill puts the files, plain ones, into the staging
// directory that it is given; when it fails, everything is as before. A directory that is not empty is a *Refusal; with
// force the files of an earlier export are replaced, if nothing else is there and nobody changed them.
func Write(dir string, force bool, from Source, fill func(staging string) error) (err error) {
	if err := Check(dir, force); err != nil {
		return err
	}
	made, err := makeAll(dir)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil && made {
			_ = unix.Rmdir(dir) // it stays when it is not empty
		}
	}()
	s, err := newStaging(dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.remove()) }()
	if err := fill(s.dir); err != nil {
		return err
	}
	fresh, err := s.describe()
	if err != nil {
		return err
	}
	there, err := look(dir, force, filepath.Base(s.dir)) // again: filling takes a while, and another export may have begun
	if err != nil {
		return err
	}
	if err := removeStale(dir, there.stale); err != nil {
		return err
	}
	for _, step := range s.replace(dir, from, there.old, fresh) {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

func makeAll(dir string) (made bool, err error) {
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return false, err
	}
	err = os.Mkdir(dir, 0o755)
	if errors.Is(err, fs.ErrExist) {
		return false, nil
	}
	return err == nil, err
}

// content is what a directory holds that may be replaced.
type content struct {
	old   []file   // of an earlier export
	stale []string // staging directories of exports that were killed
}

// look lists what of a directory may be replaced: nothing of an empty or missing one, with force the files of an earlier
// export. Anything else is a *Refusal. own is the staging directory of this export.
func look(dir string, force bool, own string) (c content, err error) {
	info, err := os.Lstat(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return c, nil
	case err != nil:
		return c, err
	case info.Mode()&fs.ModeSymlink != 0:
		target, err := os.Readlink(dir)
		return c, errors.Join(err, &Refusal{dir, "is a symbolic link to " + target, "name the directory itself"})
	case !info.IsDir():
		return c, &Refusal{dir, "exists and is not a directory", "name a directory"}
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return c, err
	}
	if entries, err = c.sortOut(dir, own, entries); err != nil || len(entries) == 0 {
		return c, err
	}
	m, err := readManifest(dir)
	switch {
	case err != nil:
		return c, &Refusal{dir, fmt.Sprintf("is not replaced: %v", err), "name another directory, or move this one away"}
	case m == nil:
		why := fmt.Sprintf("exists and is not empty: it holds %s, and no %s to tell that an export wrote them", names(entries), ManifestFile)
		return c, &Refusal{dir, why, "name another directory, or move this one away"}
	case !force && !m.Complete:
		return c, &Refusal{dir, "holds an export that was interrupted", "finish it with --force"}
	case !force:
		why := fmt.Sprintf("exists and is not empty: it holds the model of job %s (%s)", m.Job, m.Name)
		return c, &Refusal{dir, why, "name another directory, or replace the model with --force"}
	}
	c.old, err = m.match(dir, entries)
	return c, err
}

// sortOut takes staging directories out of the entries. One that another process writes is a *Refusal.
func (c *content) sortOut(dir, own string, entries []fs.DirEntry) ([]fs.DirEntry, error) {
	var rest []fs.DirEntry
	for _, e := range entries {
		if !isStaging(e.Name()) || !e.IsDir() {
			rest = append(rest, e)
			continue
		}
		if e.Name() == own {
			continue
		}
		if held(filepath.Join(dir, e.Name())) {
			return nil, &Refusal{dir, "is being exported to by another process", "let it end, or name another directory"}
		}
		c.stale = append(c.stale, e.Name())
	}
	return rest, nil
}

// match lists the files that are as the manifest says. Anything else in the directory is a *Refusal.
func (m *manifest) match(dir string, entries []fs.DirEntry) ([]file, error) {
	var found []file
	var foreign, changed []fs.DirEntry
	for _, e := range entries {
		if e.Name() == ManifestFile {
			continue
		}
		known := slices.ContainsFunc(m.Files, func(f file) bool { return f.Name == e.Name() })
		if !known || !e.Type().IsRegular() {
			foreign = append(foreign, e)
			continue
		}
		f, err := describe(filepath.Join(dir, e.Name()))
		if err != nil {
			return nil, err
		}
		if !slices.Contains(m.Files, f) {
			changed = append(changed, e)
		}
		found = append(found, f)
	}
	switch {
	case len(foreign) > 0:
		return nil, &Refusal{dir, "holds what no export wrote: " + names(foreign), "move that away, or name another directory"}
	case len(changed) > 0:
		return nil, &Refusal{dir, "holds files that were changed since their export: " + names(changed), "move them away, or name another directory"}
	}
	return found, nil
}

func names(entries []fs.DirEntry) string {
	var all []string
	for _, e := range entries {
		name := e.Name()
		if e.IsDir() {
			name += "/"
		}
		all = append(all, name)
	}
	if more := len(all) - mostNamed; more > 0 {
		all = append(all[:mostNamed], fmt.Sprintf("and %d more", more))
	}
	return strings.Join(all, ", ")
}

// replace lists the steps that put the collected files in the place of the old ones. From the second step to the one before
// the last the directory has no config.json, and whichever step is the last to be done, it holds the old model, the new one,
// or says that it holds neither.
func (s *staging) replace(dir string, from Source, old, fresh []file) []func() error {
	var steps []func() error
	step := func(f func() error) { steps = append(steps, f) }
	sync := func() error { return checkpoint.MakeDurable(dir) }
	step(func() error { return s.manifest(dir, manifest{Source: from, Files: slices.Concat(old, fresh)}) })
	for _, f := range entryFirst(old) {
		step(func() error { return os.Remove(filepath.Join(dir, f.Name)) })
		if f.Name == entry {
			step(sync)
		}
	}
	for _, f := range slices.Backward(entryFirst(fresh)) {
		if f.Name == entry {
			step(sync)
		}
		step(func() error { return os.Rename(filepath.Join(s.dir, f.Name), filepath.Join(dir, f.Name)) })
	}
	step(func() error { return s.manifest(dir, manifest{Source: from, Complete: true, Files: fresh}) })
	return steps
}

// entryFirst sorts files by name, the one that makes a model of them first.
func entryFirst(files []file) []file {
	key := func(f file) string { return strings.TrimPrefix(f.Name, entry) }
	return slices.SortedFunc(slices.Values(files), func(a, b file) int { return cmp.Compare(key(a), key(b)) })
}
