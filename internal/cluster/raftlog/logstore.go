package raftlog

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"slices"
	"time"

	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
	"go.etcd.io/bbolt"
	bbolterrors "go.etcd.io/bbolt/errors"
)

// castagnoli is the polynomial of every checksum in this package.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Each entry that Raft stores is preceded by magic, version and a CRC-32C over its index, term, type and data
// (docs/formats.md). Bolt checks only its own meta records.
const (
	entryMagic   = "AVGE"
	entryVersion = 1
	entryHeader  = 4 + 2 + 4
)

// lockTimeout bounds the wait for another process that has the log open.
const lockTimeout = time.Second

// checkedLog is Raft's log and stable store in a bolt file, with a checksum on every entry and value.
type checkedLog struct {
	bolt *raftboltdb.BoltStore
	path string
}

var _ raftStore = (*checkedLog)(nil)

// openLog opens or creates the file and reads all of it. Its errors name the file.
func openLog(path string) (*checkedLog, error) {
	if err := checkBolt(path); err != nil {
		return nil, damagedLog(path, err)
	}
	bolt, err := raftboltdb.New(raftboltdb.Options{Path: path, BoltOptions: &bbolt.Options{Timeout: lockTimeout}})
	if err != nil {
		return nil, fmt.Errorf("open raft log %s: %w", path, openBoltError(err))
	}
	l := &checkedLog{bolt, path}
	if err := l.verify(); err != nil {
		return nil, errors.Join(damagedLog(path, err), bolt.Close())
	}
	return l, nil
}

// openBoltError explains why bolt could not open a file.
func openBoltError(err error) error {
	if errors.Is(err, bbolterrors.ErrTimeout) {
		return fmt.Errorf("another process has it open, for more than %s: stop the other avgpiped, "+
			"or give this one its own state directory: %w", lockTimeout, err)
	}
	return err
}

// damagedLog says what to do about a log that cannot be used.
func damagedLog(path string, err error) error {
	return fmt.Errorf("raft log %s was not loaded: %w; restore its directory from a backup; %s", path, err, rebuild)
}

// verify reads every entry, from the first to the last without a gap, and the values that Raft keeps beside them.
func (l *checkedLog) verify() error {
	first, err := l.bolt.FirstIndex()
	if err != nil {
		return err
	}
	last, err := l.bolt.LastIndex()
	if err != nil {
		return err
	}
	var entry raft.Log
	for i := first; i <= last && last > 0; i++ {
		if err := l.GetLog(i, &entry); err != nil {
			return err
		}
	}
	for _, key := range []string{"CurrentTerm", "LastVoteTerm", "LastVoteCand"} { // Raft's own, raft.go
		if _, err := l.Get([]byte(key)); err != nil && !errors.Is(err, raftboltdb.ErrKeyNotFound) {
			return err
		}
	}
	return nil
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

// FirstIndex implements raft.LogStore.
func (l *checkedLog) FirstIndex() (uint64, error) { return l.bolt.FirstIndex() }

// LastIndex implements raft.LogStore.
func (l *checkedLog) LastIndex() (uint64, error) { return l.bolt.LastIndex() }

// DeleteRange implements raft.LogStore.
func (l *checkedLog) DeleteRange(from, to uint64) error {
	if err := l.bolt.DeleteRange(from, to); err != nil {
		return fmt.Errorf("compact raft log %s: %w", l.path, err)
	}
	return nil
}

// GetLog implements raft.LogStore.
func (l *checkedLog) GetLog(index uint64, entry *raft.Log) error {
	var stored raft.Log
	if err := l.bolt.GetLog(index, &stored); err != nil {
		if errors.Is(err, raft.ErrLogNotFound) {
			return raft.ErrLogNotFound // compared by identity inside Raft
		}
		return fmt.Errorf("%s: entry %d: %w", l.path, index, err)
	}
	if len(stored.Data) < entryHeader || string(stored.Data[:4]) != entryMagic {
		return fmt.Errorf("%s: entry %d: starts with %q, expected %q: damaged",
			l.path, index, stored.Data[:min(4, len(stored.Data))], entryMagic)
	}
	if v := binary.LittleEndian.Uint16(stored.Data[4:]); v != entryVersion {
		return fmt.Errorf("%s: entry %d: version %d, this program reads %d", l.path, index, v, entryVersion)
	}
	data := stored.Data[entryHeader:]
	found, expected := entrySum(&stored, data), binary.LittleEndian.Uint32(stored.Data[6:])
	if found != expected || stored.Index != index {
		return fmt.Errorf("%s: entry %d: checksum is %08x, expected %08x: damaged", l.path, index, found, expected)
	}
	*entry = stored
	entry.Data = slices.Clone(data)
	return nil
}

// StoreLog implements raft.LogStore.
func (l *checkedLog) StoreLog(entry *raft.Log) error { return l.StoreLogs([]*raft.Log{entry}) }

// StoreLogs implements raft.LogStore.
func (l *checkedLog) StoreLogs(entries []*raft.Log) error {
	stored := make([]*raft.Log, len(entries))
	for i, e := range entries {
		framed := *e
		framed.Data = append(make([]byte, 0, entryHeader+len(e.Data)), entryMagic...)
		framed.Data = binary.LittleEndian.AppendUint16(framed.Data, entryVersion)
		framed.Data = binary.LittleEndian.AppendUint32(framed.Data, entrySum(e, e.Data))
		framed.Data = append(framed.Data, e.Data...)
		stored[i] = &framed
	}
	if err := l.bolt.StoreLogs(stored); err != nil {
		return fmt.Errorf("write raft log %s: %w", l.path, err)
	}
	return nil
}

// Set implements raft.StableStore.
func (l *checkedLog) Set(key, value []byte) error {
	framed := binary.LittleEndian.AppendUint32(nil, valueSum(key, value))
	if err := l.bolt.Set(key, append(framed, value...)); err != nil {
		return fmt.Errorf("write raft log %s: %s: %w", l.path, key, err)
	}
	return nil
}

// Get implements raft.StableStore.
func (l *checkedLog) Get(key []byte) ([]byte, error) {
	framed, err := l.bolt.Get(key)
	if err != nil {
		return nil, err // ErrKeyNotFound, whose text Raft compares
	}
	if len(framed) < 4 {
		return nil, fmt.Errorf("%s: value %s: %d bytes, expected at least 4: damaged", l.path, key, len(framed))
	}
	if found, expected := valueSum(key, framed[4:]), binary.LittleEndian.Uint32(framed); found != expected {
		return nil, fmt.Errorf("%s: value %s: checksum is %08x, expected %08x: damaged", l.path, key, found, expected)
	}
	return framed[4:], nil
}

func valueSum(key, value []byte) uint32 {
	return crc32.Update(crc32.Checksum(key, castagnoli), castagnoli, value)
}

// SetUint64 implements raft.StableStore.
func (l *checkedLog) SetUint64(key []byte, value uint64) error {
	return l.Set(key, binary.BigEndian.AppendUint64(nil, value))
}

// GetUint64 implements raft.StableStore.
func (l *checkedLog) GetUint64(key []byte) (uint64, error) {
	value, err := l.Get(key)
	if err != nil {
		return 0, err
	}
	if len(value) != 8 {
		return 0, fmt.Errorf("%s: value %s: %d bytes, expected 8", l.path, key, len(value))
	}
	return binary.BigEndian.Uint64(value), nil
}

// Close closes the file.
func (l *checkedLog) Close() error {
	if err := l.bolt.Close(); err != nil {
		return fmt.Errorf("close raft log %s: %w", l.path, err)
	}
	return nil
}
