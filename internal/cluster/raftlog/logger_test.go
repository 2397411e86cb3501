package raftlog

import (
	"errors"
	"net"
	"testing"

	"github.com/hashicorp/raft"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
)

// TestLinesOfOtherNodesAreNoErrors: an error is something that a person should look at on this node.
func TestLinesOfOtherNodesAreNoErrors(t *testing.T) {
	core, lines := observer.New(zapcore.DebugLevel)
	log := raftLogger(zap.New(core))
	for _, c := range []struct {
		msg  string
		err  error
		want zapcore.Level
	}{
		{"peer has newer term, stopping replication", nil, zapcore.WarnLevel},
		{"failed to decode incoming command", net.ErrClosed, zapcore.WarnLevel},
		{"failed to get log", raft.ErrLogNotFound, zapcore.DebugLevel},
		{"failed to get log", errors.New("input/output error"), zapcore.ErrorLevel},
		{"failed to commit logs", errors.New("input/output error"), zapcore.ErrorLevel},
	} {
		log.Error(c.msg, "error", c.err)
		if said := lines.TakeAll(); len(said) != 1 || said[0].Level != c.want {
			t.Errorf("%s (%v): %+v, expected it at level %s", c.msg, c.err, said, c.want)
		}
	}
}

// A healthy start says nothing that somebody should look at.
func TestHealthyStartHasNoWarning(t *testing.T) {
	core, lines := observer.New(zapcore.InfoLevel)
	log, err := Open(Config{Dir: t.TempDir(), NodeID: "a", Logger: zap.New(core)})
	if err != nil {
		t.Fatal(err)
	}
	if err := log.WaitReady(t.Context()); err != nil {
		t.Error(err)
	}
	if err := log.Close(); err != nil {
		t.Error(err)
	}
	for _, l := range lines.All() {
		t.Errorf("%s: %s %v", l.Level, l.Message, l.ContextMap())
	}
}
