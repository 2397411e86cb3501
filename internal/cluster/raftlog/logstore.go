package raftlog

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"slices"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	wal "github.com/hashicorp/raft-wal"
	walfs "github.com/hashicorp/raft-wal/fs"
	"github.com/hashicorp/raft-wal/segment"
	"github.com/hashicorp/raft-wal/types"
	"golang.org/x/sys/unix"
)

// castagnoli is the polynomial of every checksum in this package.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Each entry that Raft stores is preceded by magic, version and a CRC-32C over its index, term, type and data
// (docs/formats.md). raft-wal checks only the last batch.
const (
	entryMagic   = "AVGE"
	entryVersion = 1
	entryHeader  = 4 + 2 + 4
)

// segmentBytes is the length at which a new segment begins; its file is preallocated.
const segmentBytes = 1 << 20

// checkedLog is Raft's log and stable store: raft-wal's segments in a directory. raft-wal takes whatever follows the first damaged
// frame for a torn append, and drops it. So the index of the last entry that was acknowledged is kept beside the segments: a
// log that ends before it is damaged. Everything else has a checksum, which is verified when the log is opened.
type checkedLog struct {
	*wal.WAL
	dir      string
	meta     *metaFile
	last     *lastFile
	segments *segmentFiler
}

var _ raftStore = (*checkedLog)(nil)

// openLog opens or creates the log in a directory and reads all of it. Its errors name the file.
func openLog(dir string, logger hclog.Logger) (*checkedLog, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("open raft log %s: %w", dir, err)
	}
	l := &checkedLog{dir: dir, meta: &metaFile{path: filepath.Join(dir, metaName)}}
	if err := l.meta.read(); err != nil {
		return nil, damagedLog(l.meta.path, err)
	}
	var err error
	if l.last, err = openLast(filepath.Join(dir, lastName), !l.meta.kept); err != nil {
		return nil, err
	}
	l.segments = &segmentFiler{Filer: segment.NewFiler(dir, privateFS{walfs.New()})}
	if err = l.meta.checkSegments(l.segments, l.last.entry()); err == nil {
		l.WAL, err = wal.Open(dir, wal.WithMetaStore(l.meta), wal.WithSegmentFiler(l.segments), wal.WithSegmentSize(segmentBytes), wal.WithLogger(logger))
	}
	if err != nil {
		return nil, errors.Join(damagedLog(dir, err), l.last.close())
	}
	if err := l.verify(); err != nil {
		return nil, errors.Join(damagedLog(dir, err), l.WAL.Close(), l.last.close())
	}
	return l, nil
}

// transient are the errors of a system that has no room, no descriptors or no disk for a while: they say nothing of the files.
var transient = []error{unix.ENOSPC, unix.EDQUOT, unix.EROFS, unix.EIO, unix.EMFILE, unix.ENFILE, unix.EACCES}

// damagedLog is a log that cannot be used: damaged, unless the system has a fault.
func damagedLog(path string, err error) error {
	if slices.ContainsFunc(transient, func(e error) bool { return errors.Is(err, e) }) {
		return fmt.Errorf("raft log %s was not opened: %w; its entries are as they were: start the daemon again once that has passed", path, err)
	}
	return &DamageError{fmt.Errorf("raft log %s was not loaded: %w", path, err)}
}

// verify reads every entry, from the first to the last without a gap.
func (l *checkedLog) verify() error {
	e, err := l.extent()
	if err != nil {
		return err
	}
	if written := l.last.entry(); e.last < written {
		return fmt.Errorf("%s: truncated or damaged: the log ends at entry %d, and entry %d was written", l.meta.segmentOf(e.last+1), e.last, written)
	}
	var entry raft.Log
	for i := e.first; i <= e.last && e.last > 0; i++ {
		if err := l.GetLog(i, &entry); err != nil {
			return err
		}
	}
	return nil
}

// extent is what a log holds.
type extent struct {
	path        string
	first, last uint64 // entries; 0 without any
	begun       bool   // Raft has written to it
}

// extent says what the log holds.
func (l *checkedLog) extent() (e extent, err error) {
	e.path = l.dir
	if e.first, err = l.FirstIndex(); err != nil {
		return e, err
	}
	if e.last, err = l.LastIndex(); err != nil {
		return e, err
	}
	term, err := l.Get([]byte("CurrentTerm"))
	e.begun = term != nil
	return e, err
}

// entrySum is the checksum of an entry.
func entrySum(e *raft.Log, data []byte) uint32 {
	var head [17]byte
	binary.LittleEndian.PutUint64(head[0:], e.Index)
	binary.LittleEndian.PutUint64(head[8:], e.Term)
	head[16] = byte(e.Type)
	sum := crc32.Update(crc32.Checksum(head[:], castagnoli), castagnoli, data)
	return crc32.Update(sum, castagnoli, e.Extensions)
}

// unframe checks a stored entry and takes the header off its data.
func unframe(stored *raft.Log, index uint64) error {
	if len(stored.Data) < entryHeader || string(stored.Data[:4]) != entryMagic {
		return fmt.Errorf("entry %d: starts with %q, expected %q: damaged", index, stored.Data[:min(4, len(stored.Data))], entryMagic)
	}
	if v := binary.LittleEndian.Uint16(stored.Data[4:]); v != entryVersion {
		return fmt.Errorf("entry %d: version %d, this program reads %d", index, v, entryVersion)
	}
	data := stored.Data[entryHeader:]
	found, expected := entrySum(stored, data), binary.LittleEndian.Uint32(stored.Data[6:])
	if found != expected || stored.Index != index {
		return fmt.Errorf("entry %d: checksum is %08x, expected %08x: damaged", index, found, expected)
	}
	stored.Data = data
	return nil
}

func (l *checkedLog) GetLog(index uint64, entry *raft.Log) (err error) {
	defer func() {
		if p := recover(); p != nil { // raft-wal's, at a number that its decoder does not expect
			err = fmt.Errorf("%s: entry %d: %v: damaged", l.meta.segmentOf(index), index, p)
		}
	}()
	var stored raft.Log
	if err = l.WAL.GetLog(index, &stored); errors.Is(err, raft.ErrLogNotFound) {
		return raft.ErrLogNotFound // compared by identity inside Raft
	}
	if err == nil {
		err = unframe(&stored, index)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", l.meta.segmentOf(index), err)
	}
	*entry = stored
	return nil
}

func (l *checkedLog) StoreLog(entry *raft.Log) error { return l.StoreLogs([]*raft.Log{entry}) }

func (l *checkedLog) StoreLogs(entries []*raft.Log) error {
	if len(entries) == 0 {
		return nil
	}
	stored := make([]*raft.Log, len(entries))
	for i, e := range entries {
		framed := *e
		framed.Data = append(make([]byte, 0, entryHeader+len(e.Data)), entryMagic...)
		framed.Data = binary.LittleEndian.AppendUint16(framed.Data, entryVersion)
		framed.Data = binary.LittleEndian.AppendUint32(framed.Data, entrySum(e, e.Data))
		framed.Data = append(framed.Data, e.Data...)
		stored[i] = &framed
	}
	err := l.WAL.StoreLogs(stored)
	if errors.Is(err, types.ErrSealed) { // the next segment could not be begun: raft-wal only logs why
		err = errors.Join(err, l.segments.failed.get(), l.meta.failed.get())
	}
	if err == nil {
		err = l.last.write(entries[len(entries)-1].Index, false)
	}
	if err != nil {
		return fmt.Errorf("write raft log %s: %w", l.dir, err)
	}
	return nil
}

func (l *checkedLog) DeleteRange(from, to uint64) error {
	err := l.shorten(from, to)
	if err == nil {
		err = l.WAL.DeleteRange(from, to)
	}
	if err != nil {
		return fmt.Errorf("compact raft log %s: %w", l.dir, err)
	}
	return nil
}

// shorten lowers the last entry before the end of the log is deleted, as where a new leader overwrites it.
func (l *checkedLog) shorten(from, to uint64) error {
	first, err := l.FirstIndex()
	last := l.last.entry()
	if err != nil || to < last || from > last {
		return err
	}
	if from <= first {
		from = 1 // all of it
	}
	return l.last.write(from-1, true)
}

// Close closes the files.
func (l *checkedLog) Close() error {
	if err := errors.Join(l.WAL.Close(), l.last.close()); err != nil {
		return fmt.Errorf("close raft log %s: %w", l.dir, err)
	}
	return nil
}
