package agenttest

import (
	"context"
	"io"
	"sync"
	"time"

	"github.com/avgpipe/avgpipe/internal/agent"
	"github.com/avgpipe/avgpipe/internal/worker/control"
)

// pollStatus emits a trainer's status from time to time until ctx ends.
func (x *pretender) pollStatus(ctx context.Context, emit func(agent.Event)) {
	for ctx.Err() == nil {
		s := x.trainer.status()
		emit(agent.Event{Status: &s})
		select {
		case <-ctx.Done():
		case <-time.After(agent.PollStatus):
		}
	}
}

// messagesUntil emits what a tuning says until it has ended.
func (x *pretender) messagesUntil(ctx context.Context, emit func(agent.Event)) {
	say := func(m control.TuneMessage) { emit(agent.Event{Tuning: &m}) }
	for {
		select {
		case m := <-x.messages:
			say(m)
		case <-ctx.Done():
			return
		case <-x.ended:
			for len(x.messages) > 0 {
				say(<-x.messages)
			}
			return
		}
	}
}

// follow emits what a trainer says until it has ended.
func (x *pretender) follow(ctx context.Context, emit func(agent.Event)) {
	var both sync.WaitGroup
	seen := 0
	alive, ended := context.WithCancel(ctx)
	event := func(e control.Event) bool {
		seen++
		emit(agent.Event{Worker: &e})
		return true
	}
	both.Go(func() { x.trainer.follow(alive, 0, event, func() error { return alive.Err() }) })
	both.Go(func() { x.pollStatus(alive, emit) })
	select {
	case <-x.ended:
	case <-ctx.Done():
	}
	ended()
	both.Wait()
	if ctx.Err() == nil {
		x.trainer.follow(ctx, seen, event, func() error { return io.EOF }) // what is left
	}
}
