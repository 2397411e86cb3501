package pki

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/avgpipe/avgpipe/internal/checkpoint"
)

// renewPause is the time between attempts to renew that failed, and lookEvery how often the clock is looked at, which may be set.
const (
	renewPause = 10 * time.Minute
	lookEvery  = time.Hour
)

// KeepRenewed renews the certificate when two thirds of its time are over, until ctx ends. sign has a request (DER) signed by a node that can, and
// returns the certificate and the authority's. failed is told of each attempt that failed; the next is 10 minutes later.
func (i *Identity) KeepRenewed(ctx context.Context, sign func(ctx context.Context, csr []byte) (certificate []byte, authority [][]byte, err error), failed func(error)) {
	for {
		wait := min(time.Until(i.RenewAt()), lookEvery)
		if wait <= 0 {
			wait = lookEvery
			if err := i.renew(ctx, sign); err != nil && ctx.Err() == nil {
				failed(fmt.Errorf("%w; this one is valid until %s", err, i.Expires().UTC().Format(time.RFC3339)))
				wait = renewPause
			}
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return
		}
	}
}

func (i *Identity) renew(ctx context.Context, sign func(context.Context, []byte) ([]byte, [][]byte, error)) error {
	csr, err := i.Request()
	if err != nil {
		return err
	}
	certificate, authority, err := sign(ctx, csr)
	if err != nil {
		return fmt.Errorf("renew the node's certificate: %w", err)
	}
	return i.Renew(certificate, authority...)
}

// NodeKey returns the private key (PEM) of the node in a directory, and a request for its certificate (DER). Where there is none it makes one, which
// is durable before anybody is asked: whoever joins again after an answer was lost, asks with the same key.
func NodeKey(dir string) (key, csr []byte, err error) {
	path := filepath.Join(dir, nodeKeyFile)
	if key, err = readSecret(path); err == nil {
		csr, err = Request(key)
		if err != nil {
			err = fmt.Errorf("%s: %w; delete it, and another one is made", path, err)
		}
		return key, csr, err
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return nil, nil, err
	}
	if key, csr, err = NewKey(); err != nil {
		return nil, nil, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, nil, fmt.Errorf("keep the node's key: %w", err)
	}
	return key, csr, checkpoint.WriteFile(path, key, 0o600)
}

// readSecret reads a key, which only its owner may be able to read.
func readSecret(path string) ([]byte, error) {
	info, err := os.Lstat(path)
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular() || info.Size() > maxDER:
		return nil, fmt.Errorf("%s: mode %v, %d bytes; want a regular file of at most %d", path, info.Mode(), info.Size(), maxDER)
	case info.Mode().Perm()&0o077 != 0:
		return nil, fmt.Errorf("%s has mode %v: others can read the key; have another one made, or chmod 600 where nobody has", path, info.Mode().Perm())
	}
	return os.ReadFile(path)
}
