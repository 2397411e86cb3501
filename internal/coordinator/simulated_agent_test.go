package coordinator

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/avgpipe/avgpipe/internal/agent"
	"github.com/avgpipe/avgpipe/internal/cluster"
	"github.com/avgpipe/avgpipe/internal/obstacle"
	"github.com/avgpipe/avgpipe/internal/shard"
	"github.com/avgpipe/avgpipe/internal/spec"
	"github.com/avgpipe/avgpipe/internal/worker/control"
)

// Times of messages.
const (
	simLatency = time.Millisecond
	simSilence = 2 * time.Second // until one is taken to be lost
	simCopy    = 30 * time.Millisecond
)

// keptShard is a shard on a node.
type keptShard struct {
	*content
	damaged bool
}

// simAgent is the agent of a node as a leader reaches it. Every question and every answer is a message. What it does not implement nobody asks.
type simAgent struct {
	agent.Agent
	l  *leadership
	to *simNode
}

// carry brings a question to the node, has it done there, and brings the answer back.
func (a *simAgent) carry(ctx context.Context, method string, reads bool, do func() error) error {
	w, own := a.l.w, a.to == a.l.at
	f := w.fate(method, a.to.name, own)
	boot := a.to.boots
	serves := func() error {
		switch {
		case !a.to.daemon || !own && !w.reach(a.l.at, a.to):
			return agent.ErrUnreachable
		case !own && !reads && a.to.knows != a.l.term:
			return errors.New("the node does not serve who asks")
		}
		return do()
	}
	away := func() error {
		w.sleep(simSilence)
		return fmt.Errorf("node %s: %w", a.to.name, agent.ErrUnreachable)
	}
	if f.kind == twice || f.kind == late {
		w.after(f.by, func() { _ = serves() })
	}
	if f.kind == lost || f.kind == late { // whoever asks does not wait for it
		return away()
	}
	if f.kind == slow {
		w.sleep(f.by)
	}
	w.sleep(simLatency)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	err := serves()
	switch {
	case errors.Is(err, agent.ErrUnreachable), f.kind == unanswered:
		return away()
	case f.kind == slowAnswer:
		w.sleep(f.by)
	}
	w.sleep(simLatency)
	if boot != a.to.boots || !own && !w.reach(a.l.at, a.to) {
		return away()
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

func (a *simAgent) Processes(ctx context.Context) (all []agent.Running, err error) {
	err = a.carry(ctx, "processes", true, func() error {
		all = nil
		for _, t := range a.to.living() {
			r := agent.Running{Process: t.process}
			if !t.hangs {
				s := t.status()
				r.Status, t.heard = &s, a.l.w.at
			}
			all = append(all, r)
		}
		return nil
	})
	return all, err
}

func (a *simAgent) Start(ctx context.Context, as control.Assignment) (p agent.Process, err error) {
	err = a.carry(ctx, "start", false, func() error {
		if a.to.busy {
			return errBusy(a.to.name)
		}
		p = a.to.start(a.l.w, &as)
		return nil
	})
	return p, err
}

// find returns a worker that has not ended.
func (a *simAgent) find(p agent.Process) (*trainer, error) {
	for _, t := range a.to.living() {
		if t.process == p {
			return t, nil
		}
	}
	return nil, agent.ErrNoProcess
}

func (a *simAgent) Events(ctx context.Context, p agent.Process, each func(agent.Event)) error {
	w, own := a.l.w, a.to == a.l.at
	w.sleep(simLatency)
	i := slices.IndexFunc(a.to.trainers, func(t *trainer) bool { return t.process == p && !t.forgot })
	if !a.to.daemon || !own && (!w.reach(a.l.at, a.to) || a.to.knows != a.l.term) {
		w.sleep(simSilence / 2)
		return agent.ErrUnreachable
	}
	if i < 0 {
		return agent.ErrNoProcess
	}
	t, boot := a.to.trainers[i], a.to.boots
	broken := func() bool { return boot != a.to.boots || !own && (!w.reach(a.l.at, a.to) || a.to.knows != a.l.term) }
	t.watched = true
	for next := 0; ; {
		for ; next < len(t.events); next++ {
			e := t.events[next]
			if e.Status != nil && next+1 < len(t.events) {
				continue // the last is enough
			}
			f := fate{}
			if e.Status == nil {
				f = w.fate("event", a.to.name, own)
			}
			if f.kind == lost || f.kind == unanswered || f.kind == late { // the connection breaks; whoever asks again hears all again
				w.sleep(simSilence)
				return agent.ErrUnreachable
			}
			if f.kind == slow || f.kind == slowAnswer {
				w.sleep(f.by)
			}
			w.sleep(simLatency)
			if broken() {
				w.sleep(simSilence)
				return agent.ErrUnreachable
			}
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			each(e)
			if f.kind == twice { // as where somebody else has been about to pass it on for long
				w.after(f.by, func() {
					if a.l.runs && !a.l.host.gone {
						each(e)
					}
				})
			}
			if e.Exit != nil {
				return nil
			}
		}
		t.watchers = append(t.watchers, w.running)
		w.park()
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if broken() {
			w.sleep(simLatency)
			return agent.ErrUnreachable
		}
	}
}

func (a *simAgent) Status(ctx context.Context, p agent.Process) (s control.Status, err error) {
	err = a.carry(ctx, "status", true, func() error {
		t, err := a.find(p)
		if err == nil && t.hangs {
			err = errors.New("it does not answer")
		}
		if err == nil {
			s = t.status()
		}
		return err
	})
	return s, err
}

func (a *simAgent) Commit(ctx context.Context, p agent.Process, r control.CommitRequest) (answer control.CommitResponse, err error) {
	err = a.carry(ctx, "commit", false, func() error {
		t, err := a.find(p)
		if err == nil && t.hangs {
			err = errors.New("it does not answer")
		}
		if err == nil {
			answer = t.commit(r)
		}
		return err
	})
	return answer, err
}

func (a *simAgent) Stop(ctx context.Context, p agent.Process) error {
	return a.carry(ctx, "stop", false, func() error {
		t, err := a.find(p)
		if err == nil && t.hangs {
			err = errors.New("it does not answer")
		}
		if err == nil {
			a.l.w.after(simHop, func() { t.exit(control.ExitDone, "exit status 0") })
		}
		return err
	})
}

func (a *simAgent) Kill(ctx context.Context, p agent.Process) error {
	return a.carry(ctx, "kill", false, func() error {
		if t, err := a.find(p); err == nil {
			t.exit(-1, "signal: killed")
		}
		return nil
	})
}

func (a *simAgent) Passed(ctx context.Context, _ obstacle.Obstacle) error {
	return a.carry(ctx, "passed", true, func() error {
		if a.to.busy {
			return errBusy(a.to.name)
		}
		return nil
	})
}

func (a *simAgent) Listen(ctx context.Context, job string, generation uint64) (address string, err error) {
	err = a.carry(ctx, "listen", false, func() error {
		address = fmt.Sprint(a.to.name, ":", job, generation)
		return nil
	})
	return address, err
}

func (a *simAgent) Probe(context.Context, string) (agent.Link, error) {
	a.l.w.sleep(simLatency)
	return agent.Link{RTT: simLatency, BytesPerSecond: 1e9}, nil
}

func (a *simAgent) Look(ctx context.Context, _ *spec.Spec) (agent.Sight, error) {
	return agent.Sight{}, a.carry(ctx, "look", true, func() error { return nil })
}

func (a *simAgent) Log(string, zapcore.Level, string, ...zap.Field) {}

func (a *simAgent) Record(ctx context.Context, _ *cluster.Job, _ bool) error {
	return a.carry(ctx, "record", false, func() error { return nil })
}

func (a *simAgent) KeepStatus(context.Context, string, *control.Status) error { return nil }

func (a *simAgent) Shards(job string) agent.Shards { return simShards{a: a, job: job} }

// simShards are the shards of a node.
type simShards struct {
	agent.Shards
	a   *simAgent
	job string
}

func (s simShards) look(ctx context.Context, method string, d shard.Digest, through bool) (bytes int64, err error) {
	err = s.a.carry(ctx, method, true, func() error {
		c := s.a.to.shards[d]
		switch {
		case c == nil:
			return fmt.Errorf("shard %.8s: %w", d, fs.ErrNotExist)
		case c.damaged && through:
			return &shard.DamagedError{Path: string(d[:8]), Expected: d}
		}
		bytes = 10
		return nil
	})
	return bytes, err
}

func (s simShards) Verify(ctx context.Context, d shard.Digest) (int64, error) {
	return s.look(ctx, "verify", d, true)
}

func (s simShards) Size(ctx context.Context, d shard.Digest) (int64, error) {
	return s.look(ctx, "size", d, false)
}

func (s simShards) Collect(ctx context.Context, c shard.Collection) (removed []shard.Digest, err error) {
	err = s.a.carry(ctx, "collect", false, func() error {
		for d, k := range s.a.to.shards {
			if k.job == s.job && !slices.Contains(c.Keep, d) && (slices.Contains(c.Superseded, d) || k.round < c.Before && k.generation <= c.Generation) {
				delete(s.a.to.shards, d)
				removed = append(removed, d)
			}
		}
		return nil
	})
	return removed, err
}

func (s simShards) Fetch(ctx context.Context, d shard.Digest, _ int64, from []string) error {
	w, to := s.a.l.w, s.a.to
	return s.a.carry(ctx, "fetch", false, func() error {
		if c := to.shards[d]; c != nil && !c.damaged {
			return nil
		}
		for _, name := range from {
			source := w.node(name)
			if c := source.shards[d]; c != nil && !c.damaged && source.daemon && w.reach(source, to) {
				to.shards[d] = &keptShard{content: c.content}
				return nil
			}
		}
		return fmt.Errorf("fetch shard %.8s: none of %v has it", d, from)
	})
}
