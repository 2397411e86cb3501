package raftlog

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/hashicorp/raft"

	"github.com/avgpipe/avgpipe/internal/checkpoint"
)

// A Raft snapshot is a sealed file of Raft's metadata and the state (docs/formats.md). Raft's own file store leaves the metadata, which holds index and term, without a checksum, and passes over what
// it cannot read.
const (
	snapMagic   = "AVGRSNAP"
	snapVersion = 1
	snapSuffix  = ".raftsnap"
)

// snapshotsKept are the newest ones.
const snapshotsKept = 2

// snapStore keeps Raft's snapshots as files in a directory.
type snapStore struct {
	dir    string
	failed lastError // of the last snapshot
}

var _ raft.SnapshotStore = (*snapStore)(nil)

// openSnapStore makes the directory if need be and removes what a crash left behind.
func openSnapStore(dir string) (*snapStore, error) {
	err := os.MkdirAll(dir, 0o700)
	if err == nil {
		_, err = checkpoint.RemoveStale(dir)
	}
	if err != nil {
		return nil, fmt.Errorf("open raft snapshots %s: %w", dir, err)
	}
	return &snapStore{dir: dir}, nil
}

func (s *snapStore) Create(version raft.SnapshotVersion, index, term uint64, configuration raft.Configuration,
	configurationIndex uint64, _ raft.Transport,
) (raft.SnapshotSink, error) {
	if version != raft.SnapshotVersionMax {
		return nil, fmt.Errorf("create raft snapshot: version %d, this program writes %d", version, raft.SnapshotVersionMax)
	}
	return &snapSink{store: s, meta: raft.SnapshotMeta{
		Version: version, ID: fmt.Sprintf("%020d-%020d", term, index), Index: index, Term: term,
		Configuration: configuration, ConfigurationIndex: configurationIndex,
	}}, nil
}

// snapSink gathers one snapshot in memory, as the state that it is of, and writes it when it is closed.
type snapSink struct {
	bytes.Buffer
	store  *snapStore
	meta   raft.SnapshotMeta
	closed bool
}

func (k *snapSink) ID() string { return k.meta.ID }

// Close makes the snapshot durable and removes the oldest ones. Raft calls it once more after Persist has, and only logs the error,
// which is why it is kept.
func (k *snapSink) Close() error {
	if k.closed {
		return nil
	}
	k.closed = true
	err := k.write()
	if err == nil {
		err = k.store.reap()
	}
	return k.store.failed.note(err)
}

func (k *snapSink) write() error {
	head, err := json.Marshal(k.meta)
	if err != nil {
		return fmt.Errorf("write raft snapshot %s: %w", k.meta.ID, err)
	}
	data := sealFile(snapMagic, snapVersion, head, k.Bytes())
	if err := checkpoint.WriteFile(k.store.path(k.meta.ID), data, 0o600); err != nil {
		return fmt.Errorf("write raft snapshot %s: %w", k.meta.ID, err)
	}
	return nil
}

func (k *snapSink) Cancel() error {
	k.closed = true
	return nil
}

// ids are the snapshots in the directory, newest first.
func (s *snapStore) ids() ([]string, error) {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return nil, fmt.Errorf("list raft snapshots: %w", err)
	}
	var ids []string
	for _, e := range entries {
		if id, ok := strings.CutSuffix(e.Name(), snapSuffix); ok {
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
	for _, id := range ids[min(snapshotsKept, len(ids)):] {
		if err := os.Remove(s.path(id)); err != nil && !errors.Is(err, os.ErrNotExist) {
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

func (s *snapStore) Open(id string) (*raft.SnapshotMeta, io.ReadCloser, error) {
	meta, state, err := s.load(id)
	if err != nil {
		return nil, nil, err
	}
	return meta, io.NopCloser(bytes.NewReader(state)), nil
}

// load reads a snapshot and checks it.
func (s *snapStore) load(id string) (*raft.SnapshotMeta, []byte, error) {
	data, err := os.ReadFile(s.path(id))
	if err != nil {
		return nil, nil, fmt.Errorf("read raft snapshot: %w", err)
	}
	meta, state, err := parseSnapshot(data)
	if err == nil && meta.ID != id {
		err = fmt.Errorf("it is snapshot %s", meta.ID)
	}
	if err != nil {
		return nil, nil, &DamageError{fmt.Errorf("raft snapshot %s was not loaded: %w", s.path(id), err)}
	}
	return meta, state, nil
}

// parseSnapshot checks the bytes of a snapshot file and splits them.
func parseSnapshot(data []byte) (*raft.SnapshotMeta, []byte, error) {
	head, state, err := unsealFile(snapMagic, snapVersion, data)
	if err != nil {
		return nil, nil, err
	}
	meta := &raft.SnapshotMeta{}
	if err := json.Unmarshal(head, meta); err != nil {
		return nil, nil, fmt.Errorf("metadata: %w", err)
	}
	meta.Size = int64(len(state))
	return meta, state, nil
}
