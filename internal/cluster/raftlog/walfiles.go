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
	"slices"
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

// segmentOf is the file that holds an entry, or the one before it that is the last.
func (m *metaFile) segmentOf(index uint64) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	name := ""
	for _, info := range m.record.Log.Segments {
		if name == "" || info.BaseIndex <= index {
			name = segment.FileName(info)
		}
	}
	return filepath.Join(filepath.Dir(m.path), name)
}

// checkSegments opens the segments as raft-wal will, and reports by name what raft-wal would pass over: one that is lost, which it would begin
// anew, and one that is newer than the metadata, which it would delete. last is the last entry that was acknowledged.
func (m *metaFile) checkSegments(filer types.SegmentFiler, last uint64) error {
	all, err := filer.List()
	for id, base := range all {
		if id >= m.record.Log.NextSegmentID {
			return fmt.Errorf("segment %d, from entry %d, is newer than %s: the files are not of one backup", id, base, metaName)
		}
	}
	for _, info := range slices.Clone(m.record.Log.Segments) {
		if err == nil {
			err = m.checkSegment(filer, info, last)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", filepath.Join(filepath.Dir(m.path), segment.FileName(info)), err)
		}
	}
	return err
}

// checkSegment opens one. Where it is the last and full, it notes so, and which one follows: a crash came between the two, and raft-wal
// would refuse every append.
func (m *metaFile) checkSegment(filer types.SegmentFiler, info types.SegmentInfo, last uint64) error {
	if !info.SealTime.IsZero() {
		r, err := filer.Open(info)
		if err == nil {
			err = r.Close()
		}
		return err
	}
	tail, err := filer.RecoverTail(info)
	switch {
	case errors.Is(err, fs.ErrNotExist) && info.BaseIndex > last:
		return nil // raft-wal begins it
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("missing: entries %d to %d were written to it", info.BaseIndex, last)
	case err != nil:
		return err
	}
	sealed, start, err := tail.Sealed()
	if err == nil && sealed && tail.LastIndex() < max(last, info.BaseIndex) { // garbage can read as the end of a segment
		err = fmt.Errorf("damaged: it is full and ends at entry %d; entries %d to %d were written to it", tail.LastIndex(), info.BaseIndex, last)
	}
	if err == nil && sealed {
		err = m.change(func(r *metaRecord) {
			full := &r.Log.Segments[len(r.Log.Segments)-1]
			full.MaxIndex, full.IndexStart, full.SealTime = tail.LastIndex(), start, time.Now()
			r.Log.Segments = append(r.Log.Segments, types.SegmentInfo{
				ID: r.Log.NextSegmentID, BaseIndex: full.MaxIndex + 1, MinIndex: full.MaxIndex + 1, Codec: full.Codec, CreateTime: full.SealTime, SizeLimit: full.SizeLimit,
			})
			r.Log.NextSegmentID++
		})
	}
	return errors.Join(err, tail.Close())
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

// segmentFiler is raft-wal's own, which keeps why no segment could be begun.
type segmentFiler struct {
	*segment.Filer
	failed lastError
}

func (s *segmentFiler) Create(info types.SegmentInfo) (types.SegmentWriter, error) {
	w, err := s.Filer.Create(info)
	return w, s.failed.note(err)
}
