package raftlog

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	walfs "github.com/hashicorp/raft-wal/fs"
	"github.com/hashicorp/raft-wal/segment"
	"github.com/hashicorp/raft-wal/types"

	"github.com/avgpipe/avgpipe/internal/checkpoint"
)

// The files beside the segments (docs/formats.md).
const (
	metaName = "meta" // a record: which segments there are, and Raft's term and vote
	lastName = "last" // the index of the last entry

	metaKind    = "raft-log"
	metaVersion = 1
)

// metaFile is raft-wal's metadata as a record, written anew at every change. raft-wal's own is a bolt file, which goes back one
// transaction without a word when a page is damaged.
type metaFile struct {
	path string

	mu     sync.Mutex
	kept   bool // the file is there
	record metaRecord
	failed lastError // of the last write
}

// lastError is how the last attempt at something ended, where the library only logs it.
type lastError struct{ err atomic.Pointer[error] }

func (l *lastError) note(err error) error {
	l.err.Store(&err)
	return err
}

func (l *lastError) get() error { return *cmp.Or(l.err.Load(), new(error)) }

type metaRecord struct {
	// Log is as raft-wal defines it.
	Log types.PersistentState `json:"log"`
	// Values are Raft's: CurrentTerm, LastVoteTerm, LastVoteCand.
	Values map[string][]byte `json:"values"`
}

var _ types.MetaStore = (*metaFile)(nil)

// read reads the file, if it is there.
func (m *metaFile) read() error {
	m.record.Values = map[string][]byte{}
	err := checkpoint.ReadRecord(m.path, metaKind, metaVersion, &m.record)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	m.kept = true
	return err
}

// change writes the record as edit leaves it.
func (m *metaFile) change(edit func(r *metaRecord)) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	edit(&m.record)
	return m.failed.note(checkpoint.WriteRecord(m.path, metaKind, metaVersion, m.record, 0o600))
}

func (m *metaFile) Load(string) (types.PersistentState, error) { return m.record.Log, nil }

func (m *metaFile) CommitState(s types.PersistentState) error {
	return m.change(func(r *metaRecord) { r.Log = s })
}

func (m *metaFile) GetStable(key []byte) ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.record.Values[string(key)], nil
}

func (m *metaFile) SetStable(key, value []byte) error {
	return m.change(func(r *metaRecord) { r.Values[string(key)] = value })
}

func (m *metaFile) Close() error { return nil }

// seal notes that the last segment is full, and which one follows.
func (m *metaFile) seal(tail types.SegmentWriter) error {
	_, start, err := tail.Sealed()
	if err != nil {
		return err
	}
	return m.change(func(r *metaRecord) {
		full := &r.Log.Segments[len(r.Log.Segments)-1]
		full.MaxIndex, full.IndexStart, full.SealTime = tail.LastIndex(), start, time.Now()
		next := types.SegmentInfo{
			ID: r.Log.NextSegmentID, BaseIndex: full.MaxIndex + 1, MinIndex: full.MaxIndex + 1, Codec: full.Codec, CreateTime: full.SealTime, SizeLimit: full.SizeLimit,
		}
		r.Log.NextSegmentID++
		r.Log.Segments = append(r.Log.Segments, next)
	})
}

// lastFile holds the index of the last entry of the log: magic, index, CRC-32C. It is written in place after each append, and not synced:
// whatever reaches the disk was appended before.
type lastFile struct {
	f *os.File

	mu    sync.Mutex
	index uint64
}

const (
	lastMagic = "AVGL"
	lastBytes = 4 + 8 + 4
)

// openLast opens the file. With fresh it may be absent or empty.
func openLast(path string, fresh bool) (*lastFile, error) {
	flags := os.O_RDWR
	if fresh {
		flags |= os.O_CREATE
	}
	f, err := os.OpenFile(path, flags, 0o600)
	if err != nil {
		return nil, damagedLog(path, err)
	}
	l := &lastFile{f: f}
	if err := l.load(fresh); err != nil {
		return nil, errors.Join(damagedLog(path, err), f.Close())
	}
	return l, nil
}

// load reads the index, or begins the file.
func (l *lastFile) load(fresh bool) error {
	var data [lastBytes + 1]byte
	n, err := l.f.ReadAt(data[:], 0)
	if n == 0 && fresh {
		return errors.Join(l.write(0, true), checkpoint.MakeDurable(filepath.Dir(l.f.Name())))
	}
	if n != lastBytes {
		return fmt.Errorf("%d bytes, expected %d: truncated or damaged: %w", n, lastBytes, err)
	}
	found, expected := crc32.Checksum(data[:lastBytes-4], castagnoli), binary.LittleEndian.Uint32(data[lastBytes-4:])
	if found != expected || string(data[:4]) != lastMagic {
		return fmt.Errorf("checksum is %08x, expected %08x: damaged", found, expected)
	}
	l.index = binary.LittleEndian.Uint64(data[4:])
	return nil
}

// entry is the index.
func (l *lastFile) entry() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.index
}

// write replaces the index.
func (l *lastFile) write(index uint64, sync bool) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	data := binary.LittleEndian.AppendUint64([]byte(lastMagic), index)
	data = binary.LittleEndian.AppendUint32(data, crc32.Checksum(data, castagnoli))
	_, err := l.f.WriteAt(data, 0)
	if err == nil && sync {
		err = l.f.Sync()
	}
	if err == nil {
		l.index = index
	}
	return err
}

// close makes the index durable.
func (l *lastFile) close() error { return errors.Join(l.f.Sync(), l.f.Close()) }

// privateFS is raft-wal's own but for the mode of the files that it makes, which is 0644.
type privateFS struct{ *walfs.FS }

func (p privateFS) Create(dir, name string, size uint64) (types.WritableFile, error) {
	f, err := p.FS.Create(dir, name, size)
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(filepath.Join(dir, name), 0o600); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// segmentFiler opens raft-wal's segment files, and refuses to begin one in the place of one that is lost.
type segmentFiler struct {
	*segment.Filer
	dir  string
	last uint64 // entry of the log, when it is opened: the segments up to it must be there
	next uint64 // number of the next segment then: no other is greater

	mu     sync.Mutex
	opened []types.SegmentInfo // ascending
	tail   types.SegmentWriter
	failed lastError // of the segment that was to begin last
}

var _ types.SegmentFiler = (*segmentFiler)(nil)

func newSegmentFiler(dir string, last uint64, meta *metaFile) *segmentFiler {
	return &segmentFiler{Filer: segment.NewFiler(dir, privateFS{walfs.New()}), dir: dir, last: last, next: meta.record.Log.NextSegmentID}
}

// path is the file that holds an entry, or the one before it that is the last.
func (s *segmentFiler) path(index uint64) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	name := ""
	for _, info := range s.opened {
		if name == "" || info.BaseIndex <= index {
			name = segment.FileName(info)
		}
	}
	return filepath.Join(s.dir, name)
}

// note remembers an open segment, or why it is not.
func (s *segmentFiler) note(info types.SegmentInfo, tail types.SegmentWriter, err error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		return s.failed.note(fmt.Errorf("%s: %w", filepath.Join(s.dir, segment.FileName(info)), err))
	}
	s.opened, s.tail = append(s.opened, info), tail
	return nil
}

func (s *segmentFiler) Open(info types.SegmentInfo) (types.SegmentReader, error) {
	r, err := s.Filer.Open(info)
	return r, s.note(info, nil, err)
}

// RecoverTail implements types.SegmentFiler. raft-wal begins the segment anew if its file does not exist.
func (s *segmentFiler) RecoverTail(info types.SegmentInfo) (types.SegmentWriter, error) {
	w, err := s.Filer.RecoverTail(info)
	if errors.Is(err, fs.ErrNotExist) && info.BaseIndex <= s.last {
		err = fmt.Errorf("missing: entries %d to %d were written to it", info.BaseIndex, s.last)
	}
	return w, s.note(info, w, err)
}

func (s *segmentFiler) Create(info types.SegmentInfo) (types.SegmentWriter, error) {
	w, err := s.Filer.Create(info)
	return w, s.note(info, w, err)
}

// List implements types.SegmentFiler. raft-wal deletes the files that its metadata does not name.
func (s *segmentFiler) List() (map[uint64]uint64, error) {
	all, err := s.Filer.List()
	for id, base := range all {
		if id >= s.next {
			err = fmt.Errorf("segment %d, from entry %d, is newer than %s: the files are not of one backup", id, base, metaName)
		}
	}
	return all, err
}
