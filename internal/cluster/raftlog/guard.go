package raftlog

import (
	"errors"
	"runtime"
	"sync"

	"github.com/hashicorp/raft"
)

// raftStore is what Raft writes to: its log, and the few values that it keeps with it.
type raftStore interface {
	raft.LogStore
	raft.MonotonicLogStore
	raft.StableStore
	Close() error
}

// guard stands between Raft and its store. Raft panics when it cannot write its term or read an entry, as on a disk that turned
// read-only. The guard reports the first error, and keeps the goroutine that would panic waiting until the Log is closed; then
// that goroutine ends. Raft starts every goroutine of its own so that one may end that way.
type guard struct {
	raftStore
	closing <-chan struct{} // closed when the Log begins to close

	mu      sync.Mutex
	running bool          // Raft runs: its goroutines call, not the one that opens the Log
	err     error         // the first
	failed  chan struct{} // closed when err is set
}

func newGuard(store raftStore, closing <-chan struct{}) *guard {
	return &guard{raftStore: store, closing: closing, failed: make(chan struct{})}
}

// run says that Raft runs from here on.
func (g *guard) run() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.running = true
}

// report notes an error, and whether Raft runs.
func (g *guard) report(err error) (running bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if err != nil && g.err == nil {
		g.err = err
		close(g.failed)
	}
	return g.running
}

// first is the first error; nil without one.
func (g *guard) first() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.err
}

// halt reports an error that Raft would panic at, and does not return while Raft runs.
func (g *guard) halt(err error) error {
	if err == nil || !g.report(err) {
		return err
	}
	g.stop()
	return err
}

// stop ends the calling goroutine, of Raft, when the Log begins to close.
func (g *guard) stop() {
	<-g.closing
	runtime.Goexit()
}

// StoreLogs implements raft.LogStore. Raft answers its callers with the error and no longer leads.
func (g *guard) StoreLogs(entries []*raft.Log) error {
	err := g.raftStore.StoreLogs(entries)
	g.report(err)
	return err
}

// DeleteRange implements raft.LogStore. Raft logs the error.
func (g *guard) DeleteRange(from, to uint64) error {
	err := g.raftStore.DeleteRange(from, to)
	g.report(err)
	return err
}

// GetLog implements raft.LogStore. An entry that is not there is no failure: Raft looks for some that it has compacted.
func (g *guard) GetLog(index uint64, entry *raft.Log) error {
	err := g.raftStore.GetLog(index, entry)
	if errors.Is(err, raft.ErrLogNotFound) {
		return err
	}
	return g.halt(err)
}

func (g *guard) Set(key, value []byte) error { return g.halt(g.raftStore.Set(key, value)) }

func (g *guard) SetUint64(key []byte, value uint64) error {
	return g.halt(g.raftStore.SetUint64(key, value))
}
