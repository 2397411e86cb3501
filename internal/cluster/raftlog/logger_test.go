package raftlog

import (
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
)

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
