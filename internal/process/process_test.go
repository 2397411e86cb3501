package process

import (
	"context"
	"errors"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

func TestAnyProcessIsWaitedFor(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "sh", "-c", "sleep 1000 & echo $!; exec sleep 1000")
	p, err := Start(cmd)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := p.Wait(ctx); !errors.Is(err, context.DeadlineExceeded) || !p.Alive() {
		t.Errorf("while it runs: %v", err)
	}
	if err := (ID{PID: p.PID, Start: p.Start + 1}).Wait(t.Context()); err != nil {
		t.Errorf("another that had the number: %v", err)
	}
	waited := make(chan error)
	go func() { waited <- p.Wait(t.Context()) }()
	if err := p.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := <-waited; err != nil || p.Alive() {
		t.Errorf("after the kill: %v, alive %v", err, p.Alive())
	}
	_ = cmd.Wait() // it was killed
	if err := errors.Join(p.Wait(t.Context()), p.Kill()); err != nil {
		t.Errorf("one that is gone: %v", err)
	}
}

func TestProcessesAreFoundByTheirDirectory(t *testing.T) {
	root := t.TempDir()
	cmd := exec.CommandContext(t.Context(), "sleep", "1000")
	cmd.Dir = root
	p, err := Start(cmd)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = errors.Join(p.Kill(), cmd.Wait()) }()
	dirOf := func(args []string) string {
		if slices.Contains(args, "1000") {
			return root
		}
		return ""
	}
	found, err := Find(filepath.Dir(root), dirOf)
	if err != nil || !slices.Contains(found[root], p) {
		t.Errorf("found %v, %v; want %v", found, err, p)
	}
}
