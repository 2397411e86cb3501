package agenttest

import (
	"context"
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
