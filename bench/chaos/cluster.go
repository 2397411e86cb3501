package main

import (
	"context"
	"errors"
	"slices"
	"syscall"
	"time"

	"github.com/avgpipe/avgpipe/bench/internal/rig"
	"github.com/avgpipe/avgpipe/internal/api"
)

// clusterFaults are those of several hosts, by family. The hosts that they strike are drawn.
var clusterFaults = []fault{
	{name: "kill-worker", family: "kill", does: "SIGKILL a worker", apply: onWorker(kill)},
	{name: "kill-daemon", family: "kill", does: "SIGKILL a daemon; its workers go on", apply: once(killDaemon)},
	{name: "kill-leader", family: "kill", does: "SIGKILL the daemon that leads", apply: onLeader(once(killDaemon))},
	{name: "kill-host", family: "kill", does: "SIGKILL a daemon and its workers", apply: halted(nothing)},
	{name: "kill-host-long", family: "kill", does: "the same, and the host stays away for seconds", lasts: 8 * time.Second, apply: down},
	{name: "kill-leader-host", family: "kill", does: "the host that leads stays away for seconds", lasts: 8 * time.Second, apply: onLeader(down)},
	{name: "kill-all", family: "kill", does: "SIGKILL all daemons and all workers, as when the power fails", apply: once(killAll)},
	{name: "lose-host", family: "kill", does: "SIGKILL a daemon and its workers, and the host stays away until the jobs are done, on fewer hosts", alone: true, stays: true, apply: lose},

	{name: "freeze-worker", family: "freeze", does: "SIGSTOP a worker, up to three response timeouts", lasts: 3 * responseTimeout, apply: onWorker(freeze)},
	{name: "freeze-daemon", family: "freeze", does: "SIGSTOP a daemon", lasts: 3 * responseTimeout, apply: freezeOne},
	{name: "freeze-leader", family: "freeze", does: "SIGSTOP the daemon that leads", lasts: 3 * responseTimeout, apply: onLeader(freezeOne)},
	{name: "freeze-host", family: "freeze", does: "SIGSTOP a daemon and its workers", lasts: 3 * responseTimeout, apply: freezeAll},

	{name: "cut-off", family: "network", does: "a host is cut off from all others, silently", lasts: 8 * time.Second, apply: cutOff},
	{name: "cut-leader-off", family: "network", does: "the host that leads is cut off", lasts: 8 * time.Second, apply: onLeader(cutOff)},
	{name: "cut-two", family: "network", does: "two hosts do not reach each other; others reach both", lasts: 8 * time.Second, apply: cutPair},
	{name: "unplug", family: "network", does: "a host's interface is down", lasts: 5 * time.Second, apply: unplug},
	{name: "flap", family: "network", does: "a host's interface goes down and up for half a second each", lasts: 4 * time.Second, apply: flap},
	{name: "slow-link", family: "network", does: "a host sends and receives 2 Mbit/s", lasts: 5 * time.Second, apply: slow},

	{name: "delay-link", family: "proxy", does: "what a host sends and receives is late by up to 100 ms, each piece by another time", proxied: true, lasts: 5 * time.Second, apply: toxic(delay)},
	{name: "slow-close", family: "proxy", does: "connections of a host close up to 2 s late", proxied: true, lasts: 5 * time.Second, apply: toxic(slowClose)},
	{name: "reset", family: "proxy", does: "connections of a host are reset at the first byte", proxied: true, lasts: 3 * time.Second, apply: toxic(reset)},
	{name: "limit-data", family: "proxy", does: "connections of a host close after up to 256 KiB, in the midst of a message", proxied: true, lasts: 5 * time.Second, apply: toxic(limitData)},
	{name: "swallow-data", family: "proxy", does: "connections of a host stay open, and nothing arrives", proxied: true, lasts: 5 * time.Second, apply: toxic(swallow)},
	{name: "swallow-leader", family: "proxy", does: "the same of the host that leads", proxied: true, lasts: 5 * time.Second, apply: onLeader(toxic(swallow))},
	{name: "slice-data", family: "proxy", does: "what a host sends and receives arrives in pieces of some 512 bytes", proxied: true, lasts: 5 * time.Second, apply: toxic(slice)},

	{name: "disk-full", family: "disk", does: "the state directory's disk is full on a host", mounts: true, lasts: 3 * time.Second, apply: fillDisk},
	{name: "read-only", family: "disk", does: "a state directory becomes read-only for what is opened anew", mounts: true, lasts: 3 * time.Second, apply: overmountReadOnly},
	{name: "slow-disk", family: "disk", does: "each sync of a file takes up to 0.3 s on a host", slows: true, lasts: 5 * time.Second, apply: slowDisk},
	{name: "stuck-disk", family: "disk", does: "no sync of a file returns on a host", slows: true, lasts: 4 * time.Second, apply: stuckDisk},
	{name: "stuck-leader-disk", family: "disk", does: "the same on the host that leads", slows: true, lasts: 4 * time.Second, apply: onLeader(stuckDisk)},
	{name: "flip-log", family: "damage", does: "bytes of the Raft log of a node are flipped; unless they do not matter it is refused, and joins anew", alone: true, apply: halted(anew(raftSegment, flipWritten))},
	{name: "log-gone", family: "damage", does: "the Raft log of a node is gone; it is refused, and joins anew", alone: true, apply: halted(anew(raftMeta, logGone))},
	{name: "flip-shard", family: "damage", does: "bytes of one copy of a committed shard are flipped", alone: true, apply: halted(once(damageShard(flip)))},
}

// several is what trials on so many hosts draw from. With two, nobody leads once one is lost.
func several(hosts int) setting {
	return setting{slices.DeleteFunc(slices.Clone(clusterFaults), func(f fault) bool { return f.stays && hosts < 3 }), clusterKinds(hosts)}
}

// onLeader applies a fault to the host that leads, as far as one of them knows.
func onLeader(do apply) apply {
	return func(ctx context.Context, h *host) (func() error, error) {
		return do(ctx, h.leader(ctx))
	}
}

// leader is the host that leads, or h where nobody knows.
func (h *host) leader(ctx context.Context) *host {
	ctx, cancel := context.WithTimeout(ctx, responseTimeout)
	defer cancel()
	found := h
	_ = h.any(ctx, func(c *api.Client) error { // without an answer any host will do
		nodes, err := c.Nodes(ctx)
		for _, n := range nodes {
			if i := slices.IndexFunc(h.hosts, func(one *host) bool { return one.name == n.ID }); i >= 0 && n.Leader {
				found = h.hosts[i]
			}
		}
		return err
	})
	return found
}

// down ends everything on a host; undo lets its daemon start again.
func down(ctx context.Context, h *host) (func() error, error) {
	return func() error {
		h.daemon.Release()
		return nil
	}, h.halt(ctx)
}

// lose ends everything on a host for as long as the jobs train. What was committed since all hosts were there is on two of them.
func lose(ctx context.Context, h *host) (func() error, error) {
	if err := h.vote(ctx); err != nil {
		return nil, err
	}
	for _, j := range h.jobs {
		if err := h.advances(ctx, j); err != nil {
			return nil, err
		}
	}
	undo, err := down(ctx, h)
	if err != nil {
		return undo, err
	}
	for _, j := range h.jobs {
		if err := h.noteLoss(ctx, j); err != nil {
			return undo, err
		}
	}
	return undo, nil
}

// noteLoss notes that a job has to end with fewer groups or stages, unless it had done all of its rounds when a host was lost.
func (h *host) noteLoss(ctx context.Context, j *trialJob) (err error) {
	var s api.JobStatus
	waited := rig.Poll(ctx, drainBound, "an answer of those that are left", func() bool {
		old := h.old.Load()
		s, err = h.job(ctx, j.id)
		return err == nil && h.old.Load() == old // one that says that it is old may be of before
	})
	if waited != nil {
		return errors.Join(waited, err)
	}
	j.shrinks = !s.State.Ended() && s.Round < uint64(j.kind.rounds) //nolint:gosec // a count
	if !j.shrinks {
		h.say("job %s had done its rounds before", j.id)
	}
	return nil
}

// killAll ends everything on all hosts, and then lets the daemons start.
func killAll(ctx context.Context, h *host) (err error) {
	for _, one := range h.hosts {
		defer one.daemon.Release()
		_ = signalAll(one.processes(""), syscall.SIGKILL) // halt does so again
	}
	for _, one := range h.hosts {
		err = errors.Join(err, one.halt(ctx))
	}
	return err
}

func freezeOne(_ context.Context, h *host) (func() error, error) {
	if pid := h.daemon.PID(); pid != 0 {
		return freeze(pid)
	}
	return nil, nil
}

// others are the names of all hosts but one.
func (h *host) others() (all []string) {
	for _, one := range h.hosts {
		if one != h {
			all = append(all, one.name)
		}
	}
	return all
}

func cutOff(ctx context.Context, h *host) (func() error, error) {
	return h.network.Cut(ctx, []string{h.name}, h.others())
}

func cutPair(ctx context.Context, h *host) (func() error, error) {
	return h.network.Cut(ctx, []string{h.name}, []string{pick(h, h.others())})
}

func unplug(ctx context.Context, h *host) (func() error, error) { return h.network.Unplug(ctx, h.name) }

// flap takes the interface down and up until it is undone.
func flap(ctx context.Context, h *host) (func() error, error) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() {
		for ctx.Err() == nil {
			plug, err := h.network.Unplug(ctx, h.name)
			rig.Pause(ctx, 500*time.Millisecond)
			if err = errors.Join(err, plug()); err != nil {
				done <- err
				return
			}
			rig.Pause(ctx, 500*time.Millisecond)
		}
		done <- nil
	}()
	return func() error {
		cancel()
		return <-done
	}, nil
}

func slow(ctx context.Context, h *host) (func() error, error) {
	return func() error { return h.network.Limit(context.WithoutCancel(ctx), h.name, 0) }, h.network.Limit(ctx, h.name, 2e6)
}
