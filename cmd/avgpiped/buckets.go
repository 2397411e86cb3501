package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/avgpipe/avgpipe/internal/access"
	"github.com/avgpipe/avgpipe/internal/node"
	"github.com/avgpipe/avgpipe/internal/objectstore"
)

// credentials is the path of a file with the keys of buckets, or a token; empty: none.
type credentials string

// Wants implements strictyaml.Value.
func (*credentials) Wants() string { return "the absolute path of a file" }

// Set implements strictyaml.Value.
func (c *credentials) Set(text string) bool {
	*c = credentials(text)
	return filepath.IsAbs(text)
}

// mostCredentials bounds the file.
const mostCredentials = 4096

// buckets says where buckets are, and reads their keys; nil where the configuration names none.
func (c *config) buckets() (*objectstore.Config, error) {
	if c.S3Credentials == "" {
		return nil, nil
	}
	keys, err := secret(string(c.S3Credentials), 2, "the access key in the first line, and the secret key in the second")
	b := &objectstore.Config{Endpoint: c.S3Endpoint, Region: c.S3Region}
	if err == nil {
		b.AccessKey, b.SecretKey = keys[0], keys[1]
		err = b.Validate()
	}
	if err != nil {
		return nil, &node.KeyError{Key: "s3_credentials", Err: fmt.Errorf("s3_credentials: %w", err)}
	}
	return b, nil
}

// secret reads a file of so many words, which nobody else may read.
func secret(path string, words int, what string) ([]string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if open := info.Mode().Perm() & 0o027; open != 0 {
		return nil, fmt.Errorf("%s has mode %04o, so others than its owner and group may read or write it; `chmod 0640 %[1]s`", path, info.Mode().Perm())
	}
	text, err := (*access.Opener)(nil).ReadFile(path, mostCredentials)
	if err != nil {
		return nil, err
	}
	found := strings.Fields(string(text))
	if len(found) != words {
		return nil, fmt.Errorf("%s has %d words; expected %s", path, len(found), what)
	}
	return found, nil
}
