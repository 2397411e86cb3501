package remotedata

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"time"

	"github.com/avgpipe/avgpipe/internal/checkpoint"
	"github.com/avgpipe/avgpipe/internal/objectstore"
)

// A copy lies in the file that pinned.Object.Path names. Beside it a record says what was fetched, and a part holds what has come of one that is not
// whole. The record is written before the part gets the copy's name: a copy without one is none of ours.
const (
	recordSuffix  = ".record"
	partSuffix    = ".part"
	recordKind    = "fetched"
	recordVersion = 1
)

// record says what a copy is.
type record struct {
	From   string `json:"from"` // for people
	Bytes  int64  `json:"bytes"`
	SHA256 string `json:"sha256"`
}

// check reads a copy through, and reports whether it is whole. One that is not is removed.
func (c *Cache) check(e *entry) (bool, error) {
	path := e.object.Path(c.config.Dir)
	if stampOf(path) == nil {
		return false, nil
	}
	var r record
	err := checkpoint.ReadRecord(path+recordSuffix, recordKind, recordVersion, &r)
	if err == nil && r.Bytes == e.object.Bytes {
		sum := sha256.New()
		if err := c.readInto(e, path, sum); err != nil {
			return false, err
		}
		if hex.EncodeToString(sum.Sum(nil)) == r.SHA256 {
			now := time.Now()
			return true, os.Chtimes(path+recordSuffix, now, now) // the ones used last are removed last
		}
	}
	damaged := (*checkpoint.RecordError)(nil)
	if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.As(err, &damaged) {
		return false, err
	}
	return false, c.remove(path, path+recordSuffix)
}

// readInto reads what is there of an object.
func (c *Cache) readInto(e *entry, path string, sum io.Writer) error {
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("read fetched data: %w", err)
	}
	defer f.Close() //nolint:errcheck // only read
	_, err = io.Copy(sum, &watched{Reader: f, cache: c, entry: e})
	return err
}

// watched reads, notes how far that is, and ends when nobody wants it any more.
type watched struct {
	io.Reader
	cache *Cache
	entry *entry
	done  int64
	moved bool   // what is read comes from elsewhere
	alive func() // called after each part
}

func (w *watched) Read(p []byte) (int, error) {
	switch {
	case w.cache.unwanted(w.entry):
		return 0, errUnwanted
	case w.cache.ctx.Err() != nil:
		return 0, w.cache.ctx.Err()
	}
	n, err := w.Reader.Read(p)
	if n > 0 {
		w.done += int64(n)
		w.cache.note(w.entry, w.done, w.moved)
		if w.alive != nil {
			w.alive()
		}
	}
	return n, err
}

// part is the file that an object is fetched into.
type part struct {
	file *os.File
	sum  hash.Hash
	have int64
}

// openPart opens what has come of an object earlier.
func (c *Cache) openPart(e *entry) (*part, error) {
	path := e.object.Path(c.config.Dir) + partSuffix
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("fetch data: %w", err)
	}
	p := &part{file: f, sum: sha256.New()}
	p.have, err = io.Copy(p.sum, &watched{Reader: io.LimitReader(f, e.object.Bytes), cache: c, entry: e})
	if err == nil {
		err = f.Truncate(p.have) // where it is longer than the object
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return p, nil
}

// again starts from the first byte.
func (p *part) again() error {
	p.sum.Reset()
	p.have = 0
	_, err := p.file.Seek(0, io.SeekStart)
	return errors.Join(err, p.file.Truncate(0))
}

// Write implements io.Writer.
func (p *part) Write(b []byte) (int, error) {
	n, err := p.file.Write(b)
	p.sum.Write(b[:n])
	p.have += int64(n)
	return n, err
}

// download fetches what is missing of an object. Where a connection breaks off after some bytes, it goes on at once.
func (c *Cache) download(e *entry) (err error) {
	p, err := c.openPart(e)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.file.Close()) }()
	if err := c.makeRoom(e, e.object.Bytes-p.have); err != nil {
		return err
	}
	for p.have < e.object.Bytes {
		had := p.have
		if err := c.receive(e, p); err == nil {
			continue
		} else if p.have <= had || objectstore.KindOf(err) != objectstore.Unavailable || errors.Is(err, errUnwanted) || c.ctx.Err() != nil {
			if objectstore.KindOf(err) == objectstore.Changed {
				err = errors.Join(err, c.remove(p.file.Name())) // what has come is of no use
			}
			return err
		}
	}
	return c.finish(e, p)
}

// errStalled ends a fetch from a server that sends nothing.
var errStalled = errors.New("the server sends nothing")

// receive reads from the server what is missing, or until it breaks off.
func (c *Cache) receive(e *entry, p *part) error {
	ctx, cancel := context.WithCancelCause(c.ctx)
	defer cancel(nil)
	silent := time.AfterFunc(c.config.Stall, func() { cancel(fmt.Errorf("%w for %v", errStalled, c.config.Stall)) })
	defer silent.Stop()
	fail := func(err error) error {
		if cause := context.Cause(ctx); cause != nil && c.ctx.Err() == nil {
			err = cause
		}
		return c.failed(e, p, err)
	}
	content, from, err := c.config.Open(ctx, e.user, &e.object, p.have)
	if err != nil {
		return fail(err)
	}
	defer content.Close() //nolint:errcheck // read
	if from != p.have {
		if err := p.again(); err != nil {
			return err
		}
	}
	w := &watched{Reader: content, cache: c, entry: e, done: p.have, moved: true, alive: func() { silent.Reset(c.config.Stall) }}
	_, err = io.Copy(p, io.LimitReader(w, e.object.Bytes-p.have))
	switch {
	case err != nil:
		return fail(err)
	case p.have < e.object.Bytes:
		return c.failed(e, p, io.ErrUnexpectedEOF)
	}
	return nil
}

// failed says how far a fetch got.
func (c *Cache) failed(e *entry, p *part, err error) error {
	if errors.Is(err, errUnwanted) {
		return err
	}
	if _, own := errors.AsType[*objectstore.Error](err); own && p.have == 0 {
		return err
	}
	return &objectstore.Error{Kind: objectstore.KindOf(err), Op: "get", URL: e.object.Shown(), Err: fmt.Errorf("after %d of %d bytes: %w", p.have, e.object.Bytes, err)}
}

// finish makes what has come the copy, if it is what it should be.
func (c *Cache) finish(e *entry, p *part) error {
	found := hex.EncodeToString(p.sum.Sum(nil))
	if e.object.SHA256 != "" && found != e.object.SHA256 {
		return errors.Join(&objectstore.Error{Kind: objectstore.Differs, Op: "get", URL: e.object.Shown(), Err: fmt.Errorf(
			"its SHA-256 is %s, and the job file gives %s; if the file is the one that is meant, write #sha256=%s", found, e.object.SHA256, found)}, c.remove(p.file.Name()))
	}
	path := e.object.Path(c.config.Dir)
	err := p.file.Sync()
	if err == nil {
		err = checkpoint.WriteRecord(path+recordSuffix, recordKind, recordVersion, record{e.object.Shown(), e.object.Bytes, found}, 0o600)
	}
	if err == nil {
		err = os.Rename(p.file.Name(), path)
	}
	if err == nil {
		err = checkpoint.MakeDurable(c.config.Dir)
	}
	if err != nil {
		return fmt.Errorf("keep fetched data: %w", err)
	}
	c.note(e, e.object.Bytes, true)
	return nil
}
