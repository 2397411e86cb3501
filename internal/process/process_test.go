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
	var host Host
	cmd := exec.CommandContext(t.Context(), "sh", "-c", "sleep 1000 & echo $!; exec sleep 1000")
	p, err := Start(cmd)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := host.Wait(ctx, p); !errors.Is(err, context.DeadlineExceeded) || !host.Alive(p) {
		t.Errorf("while it runs: %v", err)
	}
	if err := host.Wait(t.Context(), ID{PID: p.PID, Start: p.Start + 1}); err != nil {
		t.Errorf("another that had the number: %v", err)
	}
	waited := make(chan error)
	go func() { waited <- host.Wait(t.Context(), p) }()
	if err := host.Kill(p); err != nil {
		t.Fatal(err)
	}
	if err := <-waited; err != nil || host.Alive(p) {
		t.Errorf("after the kill: %v, alive %v", err, host.Alive(p))
	}
	_ = cmd.Wait() // it was killed
	if err := errors.Join(host.Wait(t.Context(), p), host.Kill(p)); err != nil {
		t.Errorf("one that is gone: %v", err)
	}
}

func TestProcessesAreFoundByTheirDirectory(t *testing.T) {
	root := t.TempDir()
	host := Host{WorkDir: func(args []string) string {
		if slices.Contains(args, "1000") {
			return root
		}
		return ""
	}}
	cmd := exec.CommandContext(t.Context(), "sleep", "1000")
	cmd.Dir = root
	p, err := Start(cmd)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = errors.Join(host.Kill(p), cmd.Wait()) }()
	found, err := host.Find(filepath.Dir(root))
	if err != nil || !slices.Contains(found[root], p) {
		t.Errorf("found %v, %v; want %v", found, err, p)
	}
}
