package raftlog

import (
	"bytes"
	"errors"

	"github.com/hashicorp/raft"

	"github.com/avgpipe/avgpipe/internal/cluster"
)

// Peek reads the state in a directory that holds a log, as far as its newest snapshot and its entries go, committed or not. It changes nothing and asks
// nobody. The caller sees to it that no process has the log open.
func Peek(dir string) (s *cluster.State, err error) {
	_, transport := raft.NewInmemTransport("") // a follower's log may end before its snapshot
	log, snapshots, err := openFiles(Config{Dir: dir, Existing: true, Transport: transport}.withDefaults())
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, log.Close()) }()
	s = cluster.NewState()
	covered := uint64(0)
	metas, err := snapshots.List()
	if err != nil {
		return nil, err
	}
	if len(metas) > 0 {
		meta, data, err := snapshots.load(metas[0].ID)
		if err != nil {
			return nil, err
		}
		if s, err = cluster.ReadState(bytes.NewReader(data)); err != nil {
			return nil, err
		}
		covered = meta.Index
	}
	holds, err := log.extent()
	if err != nil {
		return nil, err
	}
	var entry raft.Log
	for i := max(holds.first, covered+1); i <= holds.last; i++ {
		if err := log.GetLog(i, &entry); err != nil {
			return nil, err
		}
		if entry.Type != raft.LogCommand {
			continue
		}
		s, _, err = s.ApplyEntry(i, entry.Data)
		if _, refused := errors.AsType[*cluster.RefusedError](err); refused { // others changed nothing when they were applied either
			return nil, err
		}
	}
	return s, nil
}
