package raftlog

import (
	"errors"
	"fmt"
	"io"

	"github.com/hashicorp/raft"

	"github.com/avgpipe/avgpipe/internal/cluster"
)

// fsm is the Log as the state machine that Raft drives, from one goroutine.
type fsm Log

var _ raft.FSM = (*fsm)(nil)

// outcome is what Apply returns through Raft to whoever proposed the command.
type outcome struct {
	result cluster.Result
	err    error
}

// Apply implements raft.FSM. It does not return from an entry that is refused: Raft would apply those after it.
func (f *fsm) Apply(l *raft.Log) any {
	next, result, err := (*Log)(f).State().ApplyEntry(l.Index, l.Data)
	if _, refused := errors.AsType[*cluster.RefusedError](err); refused {
		f.store.report(fmt.Errorf("raft log %s: %w", f.config.Dir, err))
		f.store.stop()
	}
	(*Log)(f).replace(next)
	return outcome{result, err}
}

func (f *fsm) Snapshot() (raft.FSMSnapshot, error) { return stateSnapshot{(*Log)(f).State()}, nil }

// Restore implements raft.FSM. The state is replaced only when all of the snapshot was read and is whole.
func (f *fsm) Restore(r io.ReadCloser) error {
	s, err := cluster.ReadState(r)
	if err = errors.Join(err, r.Close()); err != nil {
		f.store.report(err) // Raft would go on from an older snapshot
		return err
	}
	(*Log)(f).replace(s)
	return nil
}

// stateSnapshot writes one state, which no later Apply touches.
type stateSnapshot struct{ state *cluster.State }

func (s stateSnapshot) Persist(sink raft.SnapshotSink) error {
	data, err := s.state.MarshalBinary()
	if err == nil {
		_, err = sink.Write(data)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("write snapshot %s: %w", sink.ID(), err), sink.Cancel())
	}
	return sink.Close()
}

func (stateSnapshot) Release() {}
