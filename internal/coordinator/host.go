package coordinator

import (
	"context"
	"sync"
	"time"
)

// host is what the coordinator takes from the process that it runs in: the time, and what goes on beside its own goroutine. All else it hears from
// agents and from Raft, so that a simulation of these three can explore what it does (explore_test.go).
type host interface {
	now() time.Time
	// spawn runs a task beside all others.
	spawn(task func())
	// together runs tasks beside each other, and returns once all have.
	together(tasks []func())
	// pause waits so long, or until ctx ends.
	pause(ctx context.Context, d time.Duration)
	// join waits for all that was spawned.
	join()
}

// process is the host of a daemon: its clock, and goroutines.
type process struct{ tasks sync.WaitGroup }

func (*process) now() time.Time      { return time.Now() }
func (p *process) spawn(task func()) { p.tasks.Go(task) }
func (p *process) join()             { p.tasks.Wait() }

func (*process) together(tasks []func()) {
	var all sync.WaitGroup
	for _, task := range tasks {
		all.Go(task)
	}
	all.Wait()
}

func (*process) pause(ctx context.Context, d time.Duration) {
	over := time.NewTimer(d)
	defer over.Stop()
	select {
	case <-over.C:
	case <-ctx.Done():
	}
}
