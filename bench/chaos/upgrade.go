package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/avgpipe/avgpipe/bench/internal/report"
	"github.com/avgpipe/avgpipe/bench/internal/rig"
	"github.com/avgpipe/avgpipe/internal/api"
)

// upgraded is the job that trains while a cluster is upgraded: long enough for all hosts.
var upgraded = kind{name: "upgraded", rounds: 2500, source: strings.NewReplacer("name: spread", "name: upgraded", "steps: 1600", "steps: 5000").Replace(onSeveral)}

// drainBound is how long it may take until nothing runs on a host any more, and until a job goes on elsewhere.
const drainBound = 60 * time.Second

// upgrade forms a cluster of the program before, and replaces it host by host while a job trains, as docs/operations.md says: drain, stop, replace, start,
// resume, and the host that leads last. The job must end with the bits of an undisturbed run of the new program.
func upgrade(ctx context.Context, o options) ([]report.Figure, error) {
	before, err := os.Stat(o.upgrade)
	now, nowErr := os.Stat(o.program)
	if err = errors.Join(err, nowErr); err != nil {
		return nil, fmt.Errorf("-upgrade: %w", err)
	}
	if os.SameFile(before, now) {
		return nil, fmt.Errorf("-upgrade: %s is the program that it would be upgraded to", o.upgrade)
	}
	references, err := undisturbed(ctx, o, []kind{upgraded})
	if err != nil {
		return nil, err
	}
	began := time.Now()
	if err := upgradeOnce(ctx, o, references); err != nil {
		return nil, err
	}
	return []report.Figure{{
		Metric: "hosts upgraded while a job trains, which ends as if undisturbed", Value: float64(o.hosts), Unit: "hosts", Bar: float64(o.hosts), Aim: float64(o.hosts),
		Conditions: map[string]any{"seconds": time.Since(began).Seconds(), "from": o.upgrade},
	}}, nil
}

// upgradeOnce does that on a testbed of its own.
func upgradeOnce(ctx context.Context, o options, references map[string]*outcome) (err error) {
	w, err := newTestbed(ctx, o, 1)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.remove(ctx)) }()
	for _, h := range w.hosts {
		h.own = o.upgrade
	}
	if err = w.start(ctx); err == nil {
		err = w.ready(ctx)
	}
	if err == nil {
		err = w.upgradeAll(ctx, &upgraded)
	}
	return w.finish(ctx, o.keep, references, err)
}

// upgradeAll upgrades all hosts while a job of a kind trains, and waits for its end.
func (w *testbed) upgradeAll(ctx context.Context, k *kind) error {
	id, err := w.submit(ctx, k)
	if err != nil {
		return err
	}
	j := &trialJob{kind: k, id: id}
	w.jobs = append(w.jobs, j)
	watching, end := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		w.watch(watching, j)
	}()
	defer func() {
		end()
		<-ended
	}()
	last := w.hosts[0].leader(ctx)
	for _, h := range append(slices.DeleteFunc(slices.Clone(w.hosts), func(h *host) bool { return h == last }), last) {
		if err := w.upgrade(ctx, h, j); err != nil {
			return fmt.Errorf("upgrade host %s: %w", h.name, err)
		}
	}
	return w.done(ctx)
}

// upgrade upgrades one host.
func (w *testbed) upgrade(ctx context.Context, h *host, j *trialJob) error {
	if err := w.trains(ctx, j); err != nil {
		return err
	}
	w.say("drain %s", h.name)
	err := w.any(ctx, func(c *api.Client) error {
		_, err := c.Drain(ctx, h.name, api.DrainRequest{Reason: "upgrade"})
		return err
	})
	if err == nil {
		err = w.is(ctx, h, api.NodeDrained)
	}
	if err != nil {
		return err
	}
	w.say("replace the program of %s", h.name)
	if how, err := h.daemon.Hold(ctx, syscall.SIGTERM); err != nil || how != rig.InOrder {
		return errors.Join(fmt.Errorf("the daemon ended with %s", how), err)
	}
	h.own = ""
	h.daemon.Release()
	if err := h.answers(ctx); err != nil {
		return err
	}
	err = rig.Poll(ctx, drainBound, "a change by the cluster", func() bool { // while another node begins to lead, none is made
		return w.any(ctx, func(c *api.Client) error {
			_, err := c.Undrain(ctx, h.name)
			return err
		}) == nil
	})
	if err == nil {
		err = w.is(ctx, h, api.NodeAlive)
	}
	if err == nil {
		err = w.vote(ctx)
	}
	return errors.Join(err, w.trains(ctx, j))
}

// trains waits until a job has committed further, which must not end by that.
func (w *testbed) trains(ctx context.Context, j *trialJob) error {
	err := w.advances(ctx, j)
	if s := j.status(); s.State.Ended() {
		err = errors.Join(err, fmt.Errorf("the job is %s before all hosts are upgraded: %s", s.State, s.Reason))
	}
	return err
}

// advances waits until a job has committed further, or has ended.
func (w *testbed) advances(ctx context.Context, j *trialJob) error {
	from := j.status().CommittedRound
	return rig.Poll(ctx, drainBound, "a round that is committed", func() bool {
		s := j.status()
		return s.CommittedRound > from || s.State.Ended()
	})
}

// is waits until the node that leads says that a host is in a state.
func (w *testbed) is(ctx context.Context, h *host, state api.NodeState) error {
	var last api.NodeState
	err := rig.Poll(ctx, drainBound, fmt.Sprintf("node %s being %s", h.name, state), func() bool {
		_ = w.any(ctx, func(c *api.Client) error { // who does not answer is asked again
			nodes, err := c.Nodes(ctx)
			for _, n := range nodes {
				if n.ID == h.name {
					last = n.State
				}
			}
			return err
		})
		return last == state
	})
	if err != nil {
		err = fmt.Errorf("%w; it is %s", err, last)
	}
	return err
}
