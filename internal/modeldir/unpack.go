package modeldir

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// maxFiles bounds the files of a model. A daemon sends two; one that sends thousands is not one of ours.
const maxFiles = 1000

// Unpack unpacks a tar archive of plain files into an empty directory, and reads it to its end. An archive with anything else
// (directories, links, a path, a name twice) is refused: nothing that a daemon sends may write outside the directory.
func Unpack(r io.Reader, dir string) error {
	archive := tar.NewReader(r)
	for n := 0; ; n++ {
		h, err := archive.Next()
		switch {
		case errors.Is(err, io.EOF) && n == 0:
			return errors.New("unpack the model: the daemon sent no files")
		case errors.Is(err, io.EOF):
			return drain(r)
		case err != nil:
			return fmt.Errorf("unpack the model: %w", err)
		case n == maxFiles:
			return fmt.Errorf("unpack the model: more than %d files", maxFiles)
		}
		if h.Typeflag != tar.TypeReg || !plain(h.Name) {
			return fmt.Errorf("unpack the model: refused %q of type %q: only plain files without a path are expected", h.Name, h.Typeflag)
		}
		if err := writeFile(filepath.Join(dir, h.Name), archive); err != nil {
			return fmt.Errorf("unpack the model: %w", err)
		}
	}
}

// drain reads to the end, so that an answer that broke off after the archive's end is noticed as well.
func drain(r io.Reader) error {
	if _, err := io.Copy(io.Discard, r); err != nil {
		return fmt.Errorf("unpack the model: %w", err)
	}
	return nil
}

func writeFile(path string, r io.Reader) (err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if _, err := io.Copy(f, r); err != nil {
		return err
	}
	return f.Sync()
}
