package data

import (
	"errors"
	"fmt"
	"math"
	"path/filepath"
)

// Vocabulary is the number of tokens: the values of a byte.
const Vocabulary = 256

// Separator is the token after each file. Text has no zero byte, so a model learns that it ends a file.
const Separator = 0

// Config says what to read and how to cut it.
type Config struct {
	Files     []string // absolute paths of files and directories, or glob patterns; see List
	Format    string   // "text", also when empty
	Tokenizer string   // "bytes", also when empty
	Sequence  int      // tokens in a sample
	Holdout   float64  // the share kept for evaluation, above 0 and at most 0.5; 0 means 0.05
	Seed      uint64   // of the order of the samples

	// CapBytes bounds what is held in memory. 0 means 4 GiB: more would crowd out the model on hosts of the size that this
	// loader, which holds everything, is for.
	CapBytes int64
	// Access tells whether the user of the job may read a file, or list a directory. Nil: whatever this process may.
	Access func(path string) error
}

func (c Config) withDefaults() Config {
	if c.Format == "" {
		c.Format = "text"
	}
	if c.Tokenizer == "" {
		c.Tokenizer = "bytes"
	}
	if c.Holdout == 0 {
		c.Holdout = 0.05
	}
	if c.CapBytes == 0 {
		c.CapBytes = 4 << 30
	}
	return c
}

// Validate reports the first field that does not fit, as an *Error.
func (c Config) Validate() error {
	c = c.withDefaults()
	switch {
	case len(c.Files) == 0:
		return &Error{Key: "data.files", Err: errors.New("no files are named")}
	case c.Format != "text":
		return &Error{Key: "data.format", Nearest: "text", Err: fmt.Errorf("unknown format %q; it is text", c.Format)}
	case c.Tokenizer != "bytes":
		return &Error{Key: "data.tokenizer", Nearest: "bytes", Err: fmt.Errorf("unknown tokenizer %q; it is bytes", c.Tokenizer)}
	case c.Sequence < 1:
		return &Error{Key: "data.sequence", Nearest: "1", Err: fmt.Errorf("a sample of %d tokens; it has at least 1", c.Sequence)}
	case math.IsNaN(c.Holdout) || c.Holdout <= 0 || c.Holdout > 0.5:
		return &Error{Key: "data.holdout", Nearest: "0.05", Err: fmt.Errorf("a share of %v; it is above 0 and at most 0.5", c.Holdout)}
	}
	for i, path := range c.Files {
		if !filepath.IsAbs(path) {
			return fileError(i, fmt.Errorf("%s is not an absolute path", path))
		}
	}
	return nil
}

// Error is a problem with the data, under the key of the job file that it belongs to.
type Error struct {
	Key     string // "data.files[1]", "data.sequence"
	Nearest string // the nearest valid value; "" when nothing is near
	Err     error
}

// Error names the key, what is wrong, and the nearest valid value.
func (e *Error) Error() string {
	if e.Nearest == "" {
		return fmt.Sprintf("%s: %v", e.Key, e.Err)
	}
	return fmt.Sprintf("%s: %v; nearest: %s", e.Key, e.Err, e.Nearest)
}

// Unwrap returns what is wrong.
func (e *Error) Unwrap() error { return e.Err }

// fileError is a problem with the i-th entry of Files.
func fileError(i int, err error) *Error {
	return &Error{Key: fmt.Sprintf("data.files[%d]", i), Err: err}
}
