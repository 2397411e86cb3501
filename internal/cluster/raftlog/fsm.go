package raftlog

import (
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/hashicorp/raft"

	"github.com/avgpipe/avgpipe/internal/cluster"
)

// FSM holds the replicated state and lets Raft drive it. Raft calls Apply, Snapshot and Restore from one goroutine; State and
// Changed may be called from any.
type FSM struct {
	// refuse gets why an entry was refused, and does not return: Raft would apply those after it. fail gets why a snapshot was.
	refuse, fail func(error)

	mu      sync.Mutex
	state   *cluster.State
	changed chan struct{} // closed when state is replaced
}

var _ raft.FSM = (*FSM)(nil)

// NewFSM starts with an empty state.
func NewFSM(refuse, fail func(error)) *FSM {
	return &FSM{refuse: refuse, fail: fail, state: cluster.NewState(), changed: make(chan struct{})}
}

// State is the state as of now. It never changes; ask again for a newer one.
func (f *FSM) State() *cluster.State {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.state
}

// Changed returns the state and a channel that is closed when there is a newer one.
func (f *FSM) Changed() (*cluster.State, <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.state, f.changed
}

// replace makes s the state.
func (f *FSM) replace(s *cluster.State) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.state = s
	close(f.changed)
	f.changed = make(chan struct{})
}

// outcome is what Apply returns through Raft to whoever proposed the command.
type outcome struct {
	result cluster.Result
	err    error
}

// Apply implements raft.FSM.
func (f *FSM) Apply(l *raft.Log) any {
	next, result, err := f.State().ApplyEntry(l.Index, l.Data)
	if _, refused := errors.AsType[*cluster.RefusedError](err); refused {
		f.refuse(err)
	}
	f.replace(next)
	return outcome{result, err}
}

// Snapshot implements raft.FSM.
func (f *FSM) Snapshot() (raft.FSMSnapshot, error) { return stateSnapshot{f.State()}, nil }

// Restore implements raft.FSM. The state is replaced only when all of the snapshot was read and is whole.
func (f *FSM) Restore(r io.ReadCloser) error {
	s, err := cluster.ReadState(r)
	if closeErr := r.Close(); err == nil && closeErr != nil {
		err = fmt.Errorf("read state: %w", closeErr)
	}
	if err != nil {
		f.fail(err) // Raft would go on from an older snapshot
		return err
	}
	f.replace(s)
	return nil
}

// stateSnapshot writes one state, which no later Apply touches.
type stateSnapshot struct{ state *cluster.State }

// Persist implements raft.FSMSnapshot.
func (s stateSnapshot) Persist(sink raft.SnapshotSink) error {
	data, err := s.state.MarshalBinary()
	if err == nil {
		_, err = sink.Write(data)
	}
	if err != nil {
		if cancelErr := sink.Cancel(); cancelErr != nil {
			return fmt.Errorf("write snapshot %s: %w (and cancelling it: %w)", sink.ID(), err, cancelErr)
		}
		return fmt.Errorf("write snapshot %s: %w", sink.ID(), err)
	}
	if err := sink.Close(); err != nil {
		return fmt.Errorf("close snapshot %s: %w", sink.ID(), err)
	}
	return nil
}

// Release implements raft.FSMSnapshot.
func (stateSnapshot) Release() {}
