package data

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
)

// Pinned says which data a Config names, without looking into them.
type Pinned struct {
	Files     string // SHA-256 of the names and lengths of all files, hexadecimal
	Tokenizer string // SHA-256 of tokenizer.json, likewise; empty where none is read
}

// Pin lists the files of a Config and reads its tokenizer. It finds the same as Check on every host that has the same files. What is missing is an
// *Error.
func Pin(ctx context.Context, c Config) (Pinned, error) {
	defer c.keepDirectories()()
	o, err := newOpener(ctx, c)
	if err != nil {
		return Pinned{}, err
	}
	return o.pinned(), nil
}

func (o *opener) pinned() Pinned {
	sum := sha256.New()
	for _, files := range [][]File{o.train, o.held} {
		for _, f := range files {
			fmt.Fprintf(sum, "%q %d\n", f.Name, f.Bytes) //nolint:errcheck // a hash takes everything
		}
		fmt.Fprintln(sum) //nolint:errcheck // likewise
	}
	if o.Task == Samples {
		fmt.Fprintf(sum, "%d %d\n", o.Counts.Train, o.Counts.HeldOut) //nolint:errcheck // likewise
	}
	p := Pinned{Files: hex.EncodeToString(sum.Sum(nil))}
	if o.vocab != nil && !o.vocab.IsBytes() {
		p.Tokenizer = hex.EncodeToString(o.vocab.Digest[:])
	}
	return p
}
