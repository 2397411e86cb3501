package foreign

import (
	"archive/zip"
	"bytes"
	"embed"
	"fmt"
	"io/fs"
	"strings"
	"sync"
)

//go:embed stub/__main__.py stub/avgpiped_stub/*.py
var parts embed.FS

// stub is the program for Python: an archive of its parts, which the interpreter imports from there. So a traceback names a part and a line of it.
var stub = sync.OnceValue(func() []byte {
	var out bytes.Buffer
	archive := zip.NewWriter(&out)
	err := fs.WalkDir(parts, ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		text, err := parts.ReadFile(path)
		if err != nil {
			return err
		}
		// Not compressed: an interpreter may have been built without zlib.
		w, err := archive.CreateHeader(&zip.FileHeader{Name: strings.TrimPrefix(path, "stub/"), Method: zip.Store})
		if err == nil {
			_, err = w.Write(text)
		}
		return err
	})
	if err == nil {
		err = archive.Close()
	}
	if err != nil {
		panic(fmt.Sprintf("foreign: make the archive of the stub: %v", err)) // all of it is in memory
	}
	return out.Bytes()
})
