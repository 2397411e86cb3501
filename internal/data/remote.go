package data

import (
	"errors"
	"fmt"
	"slices"
	"syscall"

	"github.com/avgpipe/avgpipe/internal/pinned"
	"github.com/avgpipe/avgpipe/job"
)

// remote are the files that an entry stands for which is a URL: the copies of them, where there is a directory of copies. One that is not there is
// absent like any file that is not.
func (c *Config) remote(entry string) (files []File, err error) {
	of := pinned.Of(c.Remote, entry)
	if len(of) == 0 {
		return nil, fmt.Errorf("%s: nobody has looked what is there; a daemon does when a job is submitted", job.Shown(entry))
	}
	for i := range of {
		o := &of[i]
		f := File{Path: o.Shown(), Name: o.Name, Bytes: o.Bytes, away: true}
		if c.RemoteDir != "" {
			f.Path, f.away = o.Path(c.RemoteDir), false
			info, err := c.Access.Stat(f.Path)
			if err == nil && info.Size != o.Bytes {
				err = absent(f.Path, syscall.ENOENT, "it has %d bytes", info.Size)
			}
			if err != nil {
				return nil, fmt.Errorf("the copy of %s, of %d bytes: %w", o.Shown(), o.Bytes, err)
			}
		}
		files = append(files, f)
	}
	return files, nil
}

// copies are the paths of copies, which are of this process, whoever the user is: it has judged his right to the objects.
func (c *Config) copies() map[string]bool {
	if c.RemoteDir == "" || len(c.Remote) == 0 {
		return nil
	}
	all := map[string]bool{}
	for i := range c.Remote {
		all[c.Remote[i].Path(c.RemoteDir)] = true
	}
	return all
}

// errAway is that of who opens what has no copy. It is a mistake in this program.
var errAway = errors.New("data: there is no directory of copies of what is read from elsewhere")

// isAway reports whether a file has no copy.
func isAway(f File) bool { return f.away }

// here are the files that are on this host.
func here(files []File) []File { return slices.DeleteFunc(slices.Clone(files), isAway) }
