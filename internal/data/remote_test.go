package data

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/internal/access"
	"github.com/avgpipe/avgpipe/internal/pinned"
)

// TestCopiesAreReadAsTheFilesThatTheyAreOf: what is fetched gives the samples that the same files on the host do, whose rights the user need not have.
func TestCopiesAreReadAsTheFilesThatTheyAreOf(t *testing.T) {
	const entry = "s3://bucket/corpus/"
	files := numbered(8, 50)
	dir, copies := corpus(t, files), t.TempDir()
	c := Config{Files: []string{entry}, Sequence: 8, Holdout: 0.2, Access: &access.Opener{User: &access.User{UID: 54321}}}
	for name, text := range files {
		o := pinned.Object{Entry: entry, URL: entry + name, Name: name, Bytes: int64(len(text)), ETag: name}
		c.Remote = append(c.Remote, o)
		if err := os.WriteFile(o.Path(copies), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	own := Config{Files: []string{dir}, Sequence: 8, Holdout: 0.2}
	want, err := Check(t.Context(), own)
	if err != nil {
		t.Fatal(err)
	}
	got, err := Check(t.Context(), c)
	if err != nil || got.Pinned != want.Pinned || got.Samples != want.Samples || got.HeldOut != want.HeldOut || len(got.Notes) != 1 {
		t.Errorf("without copies it is %+v (%v), expected %+v", got, err, want)
	}
	if _, err := Open(t.Context(), c); err == nil {
		t.Error("opened without copies")
	}
	c.RemoteDir = copies
	a, b := open(t, own), open(t, c)
	if a.Identity != b.Identity || string(textOf(a.train)) != string(textOf(b.train)) {
		t.Errorf("copies are %v, the files %v", b.Identity, a.Identity)
	}
	direct := c
	direct.Files = []string{c.Remote[0].Path(copies)}
	direct.Remote = nil
	if os.Geteuid() == 0 { // who writes into a directory of his own that others may not enter
		if _, err := Open(t.Context(), direct); !errors.Is(err, fs.ErrPermission) {
			t.Errorf("a copy is read by its path: %v", err)
		}
	}
	gone := c.Remote[1].Path(copies)
	if err := os.Remove(gone); err != nil {
		t.Fatal(err)
	}
	var at *fs.PathError
	if _, err := Open(t.Context(), c); !errors.Is(err, fs.ErrNotExist) || !errors.As(err, &at) || at.Path != gone || filepath.Dir(at.Path) != copies {
		t.Errorf("a copy is gone: %v", err)
	}
	if _, err := Check(t.Context(), Config{Files: []string{entry}, Sequence: 8}); err == nil || !strings.Contains(err.Error(), "nobody has looked") {
		t.Errorf("nobody has looked: %v", err)
	}
}

// TestTablesAndTokensThatAreNotHereAreNotOpened: their names and lengths are all that is known.
func TestTablesAndTokensThatAreNotHereAreNotOpened(t *testing.T) {
	for _, format := range []string{"csv", "tokens"} {
		const entry = "https://a.example/x"
		c := Config{Files: []string{entry}, Format: format, Sequence: 8, Remote: []pinned.Object{{Entry: entry, URL: entry, Name: "x", Bytes: 1000, ETag: "e"}}}
		if s, err := Check(t.Context(), c); err != nil || s.Files != 1 || s.Bytes != 1000 || s.Samples != 0 {
			t.Errorf("%s: %+v (%v)", format, s, err)
		}
	}
}
