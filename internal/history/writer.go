package history

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/avgpipe/avgpipe/internal/checkpoint"
)

// flushEvery is how long a record waits at most before it is written.
const flushEvery = time.Second

// maxBuffered bounds the records that wait while the disk does not take them; the oldest go first.
const maxBuffered = 1 << 14

// Writer appends to a file. Its methods may be called concurrently. Append only takes a lock: what it adds is written by Run, or
// by Sync. A nil Writer keeps nothing.
type Writer struct {
	path string
	warn func(error)

	mu      sync.Mutex
	waiting []Record

	disk    sync.Mutex // of what follows
	file    *os.File
	size    int64 // of what is whole
	limit   int   // records
	failing bool  // the last write failed, and warn was told
}

// Open opens a file, or begins one. What a crash left unfinished at its end is cut. A file that is no history is left alone and is
// an error. warn is told of a write that fails, once until one succeeds again, and must not call the Writer. Close closes it.
func Open(path string, warn func(error)) (*Writer, error) {
	w := &Writer{path: path, warn: warn, limit: maxRecords}
	if err := w.begin(); err != nil {
		return nil, err
	}
	return w, nil
}

// begin opens the file at the path of the history for the records that follow.
func (w *Writer) begin() error {
	_, damaged, good, err := load(w.path)
	if err != nil {
		return err
	}
	if damaged > 0 {
		w.warn(fmt.Errorf("the history %s: %d records are damaged and are passed over", w.path, damaged))
	}
	f, err := os.OpenFile(w.path, os.O_WRONLY|os.O_CREATE, 0o640)
	if err != nil {
		return fmt.Errorf("open the history: %w", err)
	}
	err = f.Truncate(good)
	if err == nil && good == 0 {
		good = headerSize
		_, err = f.WriteAt(header(), 0)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("open the history %s: %w", w.path, err), f.Close())
	}
	w.file, w.size = f, good
	return nil
}

// follow begins the history again where somebody has removed the file: it may be deleted at any time.
func (w *Writer) follow() error {
	own, err := w.file.Stat()
	if err != nil {
		return err
	}
	if there, err := os.Stat(w.path); err == nil && os.SameFile(own, there) {
		return nil
	}
	removed := w.file
	if err := w.begin(); err != nil {
		return err
	}
	w.warn(fmt.Errorf("the history %s was removed, and is begun again", w.path))
	return removed.Close()
}

// Append adds a record. It does not wait for the disk.
func (w *Writer) Append(r Record) {
	if w == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.waiting = bounded(append(w.waiting, r))
}

// bounded drops the oldest records of too many, a quarter at once.
func bounded(waiting []Record) []Record {
	if len(waiting) <= maxBuffered {
		return waiting
	}
	return append([]Record(nil), waiting[len(waiting)-1-maxBuffered*3/4:]...)
}

// Run writes what is appended until ctx ends, and then the rest.
func (w *Writer) Run(ctx context.Context) {
	tick := time.NewTicker(flushEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			w.flush(false)
		case <-ctx.Done():
			w.flush(true)
			return
		}
	}
}

// Sync writes what was appended and waits until it is on the disk. A failure is told to warn: training does not depend on it.
func (w *Writer) Sync() {
	if w != nil {
		w.flush(true)
	}
}

// Close closes the file.
func (w *Writer) Close() error { return w.file.Close() }

// flush writes what waits. What cannot be written waits on.
func (w *Writer) flush(sync bool) {
	w.disk.Lock()
	defer w.disk.Unlock()
	w.mu.Lock()
	batch := w.waiting
	w.waiting = nil
	w.mu.Unlock()
	err := w.write(batch, sync)
	if err != nil && !w.failing {
		w.warn(fmt.Errorf("write the history %s; training goes on: %w", w.path, err))
	}
	if w.failing = err != nil; w.failing {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.waiting = bounded(append(batch, w.waiting...))
	}
}

// write puts records at the end of what is whole, and thins the file when it is full.
func (w *Writer) write(batch []Record, sync bool) error {
	if len(batch) == 0 && !sync {
		return nil
	}
	if err := w.follow(); err != nil {
		return err
	}
	text := make([]byte, 0, len(batch)*recordSize)
	for i := range batch {
		text = batch[i].append(text)
	}
	if (w.size-headerSize)/recordSize+int64(len(batch)) > int64(w.limit) {
		return w.thin(batch)
	}
	if _, err := w.file.WriteAt(text, w.size); err != nil {
		return err
	}
	w.size += int64(len(text))
	if sync {
		return w.file.Sync()
	}
	return nil
}

// thin writes the file anew, with what holds of it and a batch, at most three quarters full.
func (w *Writer) thin(batch []Record) error {
	if err := w.file.Truncate(w.size); err != nil { // a write that failed may have left a part
		return err
	}
	records, _, _, err := load(w.path)
	if err != nil {
		return err
	}
	records = Thin(Live(append(records, batch...)), w.limit*3/4)
	text := header()
	for i := range records {
		text = records[i].append(text)
	}
	if err := checkpoint.WriteFile(w.path, text, 0o640); err != nil {
		return err
	}
	f, err := os.OpenFile(w.path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	err = w.file.Close()
	w.file, w.size = f, int64(len(text))
	return err
}
