package raftlog

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/hashicorp/raft"

	"github.com/avgpipe/avgpipe/internal/checkpoint"
)

// A Raft snapshot file: magic, version, length of the metadata, metadata (JSON), state, and a CRC-32C of all that
// (docs/formats.md). Raft's own file store leaves the metadata, which holds index and term, without a checksum, and passes over what
// it cannot read.
const (
	snapMagic   = "AVGRSNAP"
	snapVersion = 1
	snapPrefix  = 8 + 4 + 4
	snapSuffix  = ".raftsnap"
)

// snapStore keeps Raft's snapshots as files in a directory.
type snapStore struct {
	fsys   checkpoint.FS
	dir    string
	retain int // snapshots kept, the newest

	mu  sync.Mutex
	err error // why the last snapshot was not written
}

var _ raft.SnapshotStore = (*snapStore)(nil)

// openSnapStore makes the directory if need be and removes what a crash left behind.
func openSnapStore(fsys checkpoint.FS, dir string) (*snapStore, error) {
	if err := fsys.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("open raft snapshots %s: %w", dir, err)
	}
	if _, err := checkpoint.RemoveStale(fsys, dir); err != nil {
		return nil, fmt.Errorf("open raft snapshots %s: %w", dir, err)
	}
	return &snapStore{fsys: fsys, dir: dir, retain: 2}, nil
}

// Create implements raft.SnapshotStore.
func (s *snapStore) Create(version raft.SnapshotVersion, index, term uint64, configuration raft.Configuration,
	configurationIndex uint64, _ raft.Transport,
) (raft.SnapshotSink, error) {
	if version != raft.SnapshotVersionMax {
		return nil, fmt.Errorf("create raft snapshot: version %d, this program writes %d", version, raft.SnapshotVersionMax)
	}
	meta := raft.SnapshotMeta{
		Version: version, ID: fmt.Sprintf("%020d-%020d", term, index), Index: index, Term: term,
		Configuration: configuration, ConfigurationIndex: configurationIndex,
	}
	head, err := json.Marshal(meta)
	if err != nil {
		return nil, fmt.Errorf("create raft snapshot %s: %w", meta.ID, err)
	}
	file, err := checkpoint.Create(s.fsys, s.dir, 0o600, 0)
	if err != nil {
		return nil, s.note(fmt.Errorf("create raft snapshot %s: %w", meta.ID, err))
	}
	sink := &snapSink{store: s, id: meta.ID, file: file}
	prefix := append(make([]byte, 0, snapPrefix+len(head)), snapMagic...)
	prefix = binary.LittleEndian.AppendUint32(prefix, snapVersion)
	prefix = binary.LittleEndian.AppendUint32(prefix, uint32(len(head)))
	if _, err := sink.Write(append(prefix, head...)); err != nil {
		return nil, errors.Join(err, sink.Cancel())
	}
	return sink, nil
}

// note remembers how the last snapshot went. Raft only logs it.
func (s *snapStore) note(err error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = err
	return err
}

// failure is why the last snapshot was not written; nil when it was.
func (s *snapStore) failure() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// snapSink writes one snapshot.
type snapSink struct {
	store  *snapStore
	id     string
	file   *checkpoint.AtomicFile
	sum    uint32
	closed bool
}

// ID implements raft.SnapshotSink.
func (k *snapSink) ID() string { return k.id }

// Write implements io.Writer.
func (k *snapSink) Write(p []byte) (int, error) {
	n, err := k.file.Write(p)
	k.sum = crc32.Update(k.sum, castagnoli, p[:n])
	if err != nil {
		return n, k.store.note(fmt.Errorf("write raft snapshot %s: %w", k.id, err))
	}
	return n, nil
}

// Close makes the snapshot durable and removes the oldest ones. Raft calls it once more after Persist has.
func (k *snapSink) Close() error {
	if k.closed {
		return nil
	}
	k.closed = true
	if _, err := k.file.Write(binary.LittleEndian.AppendUint32(nil, k.sum)); err != nil {
		return k.store.note(errors.Join(fmt.Errorf("write raft snapshot %s: %w", k.id, err), k.file.Abort()))
	}
	if err := k.file.Commit(k.id + snapSuffix); err != nil {
		return k.store.note(err)
	}
	return k.store.note(k.store.reap())
}

// Cancel implements raft.SnapshotSink.
func (k *snapSink) Cancel() error { return k.file.Abort() }

// ids are the snapshots in the directory, newest first.
func (s *snapStore) ids() ([]string, error) {
	names, err := s.fsys.ReadDir(s.dir)
	if err != nil {
		return nil, fmt.Errorf("list raft snapshots: %w", err)
	}
	var ids []string
	for _, name := range names {
		if id, ok := strings.CutSuffix(name, snapSuffix); ok {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	slices.Reverse(ids)
	return ids, nil
}

// reap removes all but the newest.
func (s *snapStore) reap() error {
	ids, err := s.ids()
	if err != nil {
		return err
	}
	for _, id := range ids[min(s.retain, len(ids)):] {
		if err := s.fsys.Remove(s.path(id)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("remove old raft snapshot: %w", err)
		}
	}
	return nil
}

func (s *snapStore) path(id string) string { return filepath.Join(s.dir, id+snapSuffix) }

// List implements raft.SnapshotStore: newest first, each read through. A damaged one is an error that names it: to go on from
// an older one would silently forget what was committed since.
func (s *snapStore) List() ([]*raft.SnapshotMeta, error) {
	ids, err := s.ids()
	if err != nil {
		return nil, err
	}
	var metas []*raft.SnapshotMeta
	for _, id := range ids {
		meta, _, err := s.load(id)
		if err != nil {
			return nil, err
		}
		metas = append(metas, meta)
	}
	return metas, nil
}

// Open implements raft.SnapshotStore.
func (s *snapStore) Open(id string) (*raft.SnapshotMeta, io.ReadCloser, error) {
	meta, state, err := s.load(id)
	if err != nil {
		return nil, nil, err
	}
	return meta, io.NopCloser(bytes.NewReader(state)), nil
}

// load reads a snapshot and checks it.
func (s *snapStore) load(id string) (*raft.SnapshotMeta, []byte, error) {
	f, err := s.fsys.Open(s.path(id))
	if err != nil {
		return nil, nil, fmt.Errorf("open raft snapshot: %w", err)
	}
	data, err := io.ReadAll(f)
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return nil, nil, fmt.Errorf("read raft snapshot %s: %w", s.path(id), err)
	}
	meta, state, err := parseSnapshot(data)
	if err == nil && meta.ID != id {
		err = fmt.Errorf("it is snapshot %s", meta.ID)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("raft snapshot %s was not loaded: %w; restore the directory %s from a backup; %s",
			s.path(id), err, filepath.Dir(s.dir), rebuild)
	}
	return meta, state, nil
}

// parseSnapshot checks the bytes of a snapshot file and splits them.
func parseSnapshot(data []byte) (*raft.SnapshotMeta, []byte, error) {
	if len(data) < snapPrefix+4 {
		return nil, nil, fmt.Errorf("truncated: %d bytes, expected at least %d", len(data), snapPrefix+4)
	}
	if string(data[:8]) != snapMagic {
		return nil, nil, fmt.Errorf("starts with %q, expected %q", data[:8], snapMagic)
	}
	if v := binary.LittleEndian.Uint32(data[8:]); v != snapVersion {
		return nil, nil, fmt.Errorf("version %d, this program reads %d", v, snapVersion)
	}
	body, tail := data[:len(data)-4], data[len(data)-4:]
	if found, expected := crc32.Checksum(body, castagnoli), binary.LittleEndian.Uint32(tail); found != expected {
		return nil, nil, fmt.Errorf("truncated or damaged: checksum is %08x, expected %08x", found, expected)
	}
	body = body[snapPrefix:]
	length := binary.LittleEndian.Uint32(data[12:])
	if uint64(length) > uint64(len(body)) {
		return nil, nil, fmt.Errorf("metadata claims %d bytes of %d", length, len(body))
	}
	meta := &raft.SnapshotMeta{}
	if err := json.Unmarshal(body[:length], meta); err != nil {
		return nil, nil, fmt.Errorf("metadata: %w", err)
	}
	state := body[length:]
	meta.Size = int64(len(state))
	return meta, state, nil
}
