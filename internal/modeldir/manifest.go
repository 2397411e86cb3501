package modeldir

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// ManifestFile is the name of the manifest in a directory that was exported to.
const ManifestFile = "avgpipe-export.json"

const (
	magic   = "AVGEXPORT"
	version = 1
	// maxManifestBytes bounds what is read: a thousand files take 200 KB.
	maxManifestBytes = 1 << 20
)

// Source says where a model comes from, for people.
type Source struct {
	Job  string `json:"job"`
	Name string `json:"name"`
}

// manifest says which files of a directory an export wrote.
type manifest struct {
	Magic   string `json:"magic"`
	Version int    `json:"version"`
	Source
	// Complete is false from before the first file is replaced until after the last one is. Files then lists those of both
	// exports, so a name may be there twice.
	Complete bool   `json:"complete"`
	Files    []file `json:"files"`
}

type file struct {
	Name   string `json:"name"`
	Bytes  int64  `json:"bytes"`
	SHA256 string `json:"sha256"`
}

// plain reports whether a name stays in the directory that it is joined to and is not one of this package's own.
func plain(name string) bool {
	return name != "" && name != "." && name != ".." && name != ManifestFile && !strings.ContainsAny(name, "/\\\x00") && !isStaging(name)
}

// decode reads a manifest. It refuses what this program did not write.
func decode(text []byte) (*manifest, error) {
	var m manifest
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&m); err != nil {
		return nil, fmt.Errorf("decode: %w", err)
	}
	switch {
	case m.Magic != magic:
		return nil, fmt.Errorf("its magic is %q, want %q", m.Magic, magic)
	case m.Version != version:
		return nil, fmt.Errorf("its version is %d; this program reads %d", m.Version, version)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("something follows its JSON object")
	}
	for _, f := range m.Files {
		if !plain(f.Name) {
			return nil, fmt.Errorf("it names the file %q, which no export writes", f.Name)
		}
	}
	return &m, nil
}

// readManifest reads the manifest of a directory; nil when there is none.
func readManifest(dir string) (*manifest, error) {
	path := filepath.Join(dir, ManifestFile)
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular() || info.Size() > maxManifestBytes:
		return nil, fmt.Errorf("%s is no manifest of an export: it is not a plain file of at most %d bytes", path, maxManifestBytes)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	m, err := decode(text)
	if err != nil {
		return nil, fmt.Errorf("%s is no manifest of an export: %w", path, err)
	}
	return m, nil
}

func (m manifest) encode() ([]byte, error) {
	m.Magic, m.Version = magic, version
	text, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", ManifestFile, err)
	}
	return append(text, '\n'), nil
}

// describe returns what the manifest says of a plain file.
func describe(path string) (out file, err error) {
	f, err := os.Open(path)
	if err != nil {
		return out, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	digest := sha256.New()
	n, err := io.Copy(digest, f)
	return file{Name: filepath.Base(path), Bytes: n, SHA256: hex.EncodeToString(digest.Sum(nil))}, err
}
