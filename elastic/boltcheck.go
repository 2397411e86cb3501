package elastic

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"io/fs"
	"os"
	"runtime/debug"
	"time"

	"go.etcd.io/bbolt"
	bbolterrors "go.etcd.io/bbolt/errors"
)

// lockTimeout bounds the wait for another process that has the log open.
const lockTimeout = time.Second

// checkBolt reads a bolt file from end to end and reports what is wrong with it, before anything in it is used. Bolt by itself
// crashes the process on some damage, and silently goes back one transaction, losing a committed entry, on other. An
// absent or empty file is right: it has yet to be initialised.
func checkBolt(path string) error {
	empty, err := checkBoltMeta(path)
	if err != nil || empty {
		return err
	}
	// A damaged page may hold any offset: a read beyond the mapping must be an error, not the end of the process.
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	return recovered(func() error { return checkBoltPages(path) })
}

// recovered turns a panic of f into an error.
func recovered(f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("damaged: reading it panicked: %v", p)
		}
	}()
	return f()
}

// The head of a bolt file: two pages, each a 16-byte page header and a meta record. Both records are whole after any
// transaction; one is written at a time, within a disk sector. So one that is not whole is damage, not an interrupted write.
const (
	boltPageHeader = 16
	boltMetaBytes  = 64
	boltMagic      = 0xED0CDAED
	// boltMinFile is the least that bolt initialises a file to: four pages of the least page size that it supports.
	boltMinFile = 4 * 1024
)

// checkBoltMeta checks both meta records, and the file's length against what they claim.
func checkBoltMeta(path string) (empty bool, err error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	info, err := f.Stat()
	if err != nil {
		return false, err
	}
	if info.Size() == 0 {
		return true, nil
	}
	if info.Size() < boltMinFile {
		return false, fmt.Errorf("truncated: %d bytes, expected at least %d", info.Size(), boltMinFile)
	}
	pageSize, err := checkBoltRecord(f, 0, info.Size())
	if err != nil {
		return false, err
	}
	_, err = checkBoltRecord(f, pageSize, info.Size())
	return false, err
}

// checkBoltRecord checks the meta record of the page at offset and returns the page size.
func checkBoltRecord(r io.ReaderAt, offset, size int64) (pageSize int64, err error) {
	var m [boltMetaBytes]byte
	if _, err := r.ReadAt(m[:], offset+boltPageHeader); err != nil {
		return 0, fmt.Errorf("truncated: meta record at %d: %w", offset, err)
	}
	sum := fnv.New64a()
	sum.Write(m[:56]) // never fails, by its contract
	native := binary.NativeEndian
	if found, expected := sum.Sum64(), native.Uint64(m[56:]); native.Uint32(m[:]) != boltMagic || found != expected {
		return 0, fmt.Errorf("damaged: meta record at %d: checksum is %016x, expected %016x", offset, found, expected)
	}
	pageSize = int64(native.Uint32(m[8:]))
	pages := native.Uint64(m[40:]) // the high-water mark
	if pageSize <= 0 || pages > uint64(size/pageSize) {
		return 0, fmt.Errorf("truncated: %d bytes, expected at least %d pages of %d", size, pages, pageSize)
	}
	return pageSize, nil
}

// checkBoltPages walks all keys and values, and then lets bolt check that every page is used exactly once.
func checkBoltPages(path string) (err error) {
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{ReadOnly: true, PreLoadFreelist: true, Timeout: lockTimeout})
	if err != nil {
		return openBoltError(err)
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	return db.View(func(tx *bbolt.Tx) error {
		sum := byte(0)
		err := tx.ForEach(func(name []byte, b *bbolt.Bucket) error {
			return b.ForEach(func(k, v []byte) error {
				for _, x := range v { // touch every byte, so that one that cannot be read fails here
					sum ^= x
				}
				return nil
			})
		})
		if err != nil {
			return fmt.Errorf("damaged: %w", err)
		}
		var problems []error
		for problem := range tx.Check() {
			problems = append(problems, problem)
		}
		if len(problems) > 0 {
			return fmt.Errorf("damaged: %w (%d problems)", problems[0], len(problems))
		}
		return nil
	})
}

// openBoltError explains why bolt could not open a file.
func openBoltError(err error) error {
	if errors.Is(err, bbolterrors.ErrTimeout) {
		return fmt.Errorf("another process has it open, for more than %s: stop the other avgpiped, or give this one its own state directory: %w",
			lockTimeout, err)
	}
	return err
}
