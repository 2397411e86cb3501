package node

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// writeTar writes the files of a directory, which has no directories in it, by their names.
func writeTar(dir string, w io.Writer) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("pack %s: %w", dir, err)
	}
	out := tar.NewWriter(w)
	for _, e := range entries {
		if err := addFile(out, filepath.Join(dir, e.Name())); err != nil {
			return fmt.Errorf("pack %s: %w", dir, err)
		}
	}
	if err := out.Close(); err != nil {
		return fmt.Errorf("pack %s: %w", dir, err)
	}
	return nil
}

func addFile(out *tar.Writer, path string) (err error) {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	header := &tar.Header{Name: filepath.Base(path), Mode: 0o644, Size: info.Size(), ModTime: info.ModTime(), Format: tar.FormatPAX}
	if err := out.WriteHeader(header); err != nil {
		return err
	}
	_, err = io.Copy(out, f)
	return err
}
