// Package audit keeps a record of who changed what, and of who was refused: a file of JSON lines that is rotated by size.
//
//	log, err := audit.Open(audit.Config{Path: "/var/lib/avgpipe/audit.log", Log: zap.NewNop()})
//	log.Write(audit.Record{User: "ada", Operation: "cancel", Object: "/v1/jobs/7/cancel", Status: 202})
//	err = log.Close()
package audit

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"
)

// Record is one line: somebody changed something, or was refused.
type Record struct {
	Time    time.Time `json:"time"`
	Request string    `json:"request,omitempty"` // its id, the same on every node that it passes
	User    string    `json:"user,omitempty"`    // "" where nobody knows who it is
	UID     *uint32   `json:"uid,omitempty"`
	Role    string    `json:"role,omitempty"` // of a certificate
	From    string    `json:"from,omitempty"` // an address, or unix
	Via     string    `json:"via,omitempty"`  // the node that passed the request on
	// Operation is the operationId of the API, or what else was tried: connect, join.
	Operation string `json:"operation"`
	Object    string `json:"object,omitempty"` // a path of the API, or a name
	Status    int    `json:"status,omitempty"` // of HTTP; 0: it was no request
	Error     string `json:"error,omitempty"`  // why it was refused; "" of what was done
	// Lost is how many records before this one are lost, because more came than could be written.
	Lost uint64 `json:"lost,omitempty"`
}

// Config configures a Log.
type Config struct {
	// Path is the file. Rotated ones are beside it, with .1 for the youngest. Required.
	Path string
	// Bytes is the length from which a file is rotated. Default 16 MiB.
	Bytes int64
	// Files is how many rotated files are kept. Default 8.
	Files int
	// Log is told what cannot be written. Required.
	Log *zap.Logger
}

func (c Config) withDefaults() Config {
	c.Bytes, c.Files = cmp.Or(c.Bytes, 16<<20), cmp.Or(c.Files, 8)
	return c
}

// Validate reports the first field that does not fit.
func (c Config) Validate() error {
	switch {
	case c.Path == "" || c.Log == nil:
		return errors.New("audit: Path and Log are required")
	case c.Bytes < 0 || c.Files < 0:
		return fmt.Errorf("audit: %d bytes and %d files: neither may be negative", c.Bytes, c.Files)
	}
	return nil
}

// queued is how many records wait for the disk at most. longest is what an error may have of them, bytes.
const queued, longest = 1024, 4 << 10

// Log writes records. Its methods may be called concurrently.
type Log struct {
	config  Config
	records chan Record
	done    sync.WaitGroup

	mu     sync.Mutex
	closed bool
	lost   uint64

	// Of the goroutine that writes.
	file *os.File
	size int64
}

// Open opens the file, and makes it where it is missing. The caller closes the Log.
func Open(c Config) (*Log, error) {
	c = c.withDefaults()
	if err := c.Validate(); err != nil {
		return nil, err
	}
	l := &Log{config: c, records: make(chan Record, queued)}
	if err := l.open(); err != nil {
		return nil, err
	}
	l.done.Go(l.run)
	return l, nil
}

// Write adds a record, whose time is now unless it has one. It does not wait for the disk: what comes faster than that takes is
// counted and lost.
func (l *Log) Write(r Record) {
	if r.Time.IsZero() {
		r.Time = time.Now()
	}
	r.Time = r.Time.UTC()
	r.Error, r.Object = r.Error[:min(len(r.Error), longest)], r.Object[:min(len(r.Object), longest)]
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return
	}
	r.Lost = l.lost
	select {
	case l.records <- r:
		l.lost = 0
	default:
		l.lost++
	}
}

// Close writes what is left and closes the file.
func (l *Log) Close() error {
	l.mu.Lock()
	if !l.closed {
		l.closed = true
		close(l.records)
	}
	l.mu.Unlock()
	l.done.Wait()
	if l.file == nil {
		return nil
	}
	return l.file.Close()
}

// run writes records until Close. Those that came together are made durable together.
func (l *Log) run() {
	for r := range l.records {
		err := l.append(r)
		for range len(l.records) {
			err = errors.Join(err, l.append(<-l.records))
		}
		if err == nil && l.file != nil {
			err = l.file.Sync()
		}
		if err != nil {
			l.config.Log.Error("write the audit log", zap.String("file", l.config.Path), zap.Error(err))
		}
	}
}

// open opens the file for appending. A part of a line at its end, of a host that failed, is ended.
func (l *Log) open() error {
	f, err := os.OpenFile(l.config.Path, os.O_CREATE|os.O_APPEND|os.O_RDWR|unix.O_NONBLOCK, 0o600)
	if err != nil {
		return fmt.Errorf("open the audit log: %w", err)
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = errors.New("it is no regular file: move it away")
	}
	if err != nil {
		return errors.Join(fmt.Errorf("open the audit log %s: %w", l.config.Path, err), f.Close())
	}
	l.file, l.size = f, info.Size()
	end := []byte{'\n'}
	if l.size > 0 {
		if _, err := f.ReadAt(end, l.size-1); err == nil && end[0] != '\n' {
			_, _ = f.Write([]byte{'\n'}) // the next write says it
			l.size++
		}
	}
	return nil
}

// append writes one record in one write, and rotates before when the file is full.
func (l *Log) append(r Record) error {
	line, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("encode a record: %w", err)
	}
	line = append(line, '\n')
	if l.size > 0 && l.size+int64(len(line)) > l.config.Bytes {
		if err := l.rotate(); err != nil {
			return err
		}
	}
	if l.file == nil { // it could not be opened before
		if err := l.open(); err != nil {
			return err
		}
	}
	n, err := l.file.Write(line)
	l.size += int64(n)
	if err != nil {
		return fmt.Errorf("write a record: %w", err)
	}
	return nil
}

// rotate makes the file the youngest of the rotated ones and begins another.
func (l *Log) rotate() error {
	if l.file != nil {
		err := errors.Join(l.file.Sync(), l.file.Close())
		l.file, l.size = nil, 0
		if err != nil {
			return fmt.Errorf("end a full file: %w", err)
		}
	}
	name := func(i int) string {
		if i == 0 {
			return l.config.Path
		}
		return fmt.Sprintf("%s.%d", l.config.Path, i)
	}
	for i := l.config.Files; i > 0; i-- {
		if err := os.Rename(name(i-1), name(i)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("rotate: %w", err)
		}
	}
	return l.open()
}
