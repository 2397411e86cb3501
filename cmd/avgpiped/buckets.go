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

// credentials is the path of a file with the keys of buckets; empty: none.
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

// buckets says where buckets are, and reads their keys; nil where the configuration names none. A file that others may read is refused.
func (c *config) buckets() (*objectstore.Config, error) {
	if c.S3Credentials == "" {
		return nil, nil
	}
	path := string(c.S3Credentials)
	refuse := func(format string, args ...any) (*objectstore.Config, error) {
		return nil, &node.KeyError{Key: "s3_credentials", Err: fmt.Errorf("s3_credentials: "+format, args...)}
	}
	info, err := os.Stat(path)
	if err != nil {
		return refuse("%w", err)
	}
	if open := info.Mode().Perm() & 0o027; open != 0 {
		return refuse("%s has mode %04o, so others than its owner and group may read or write it; `chmod 0640 %[1]s`", path, info.Mode().Perm())
	}
	text, err := (*access.Opener)(nil).ReadFile(path, mostCredentials)
	if err != nil {
		return refuse("%w", err)
	}
	keys := strings.Fields(string(text))
	if len(keys) != 2 {
		return refuse("%s has %d words; expected the access key in the first line, and the secret key in the second", path, len(keys))
	}
	b := &objectstore.Config{Endpoint: c.S3Endpoint, Region: c.S3Region, AccessKey: keys[0], SecretKey: keys[1]}
	if err := b.Validate(); err != nil {
		return refuse("%w", err)
	}
	return b, nil
}
