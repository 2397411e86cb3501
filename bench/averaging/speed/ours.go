package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/procfs"

	"github.com/avgpipe/avgpipe/bench/internal/rig"
	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/worker/control"
)

const (
	// lookEvery is how often workers are asked what they have done. The time of a window is known that well.
	lookEvery = 20 * time.Millisecond
	// stepBound is how long a job may take to its first step, and between two of them.
	stepBound = 2 * time.Minute
)

// reading is what one run came to, for one replica, the mean over all of them.
type reading struct {
	step  float64 // seconds
	alone float64 // seconds of a step without any exchange, of the peer; 0: another run says so
	cpu   float64 // seconds of the cores in a step, of the process that trains
	sent  float64 // bytes that leave the host in a step
	lag   float64 // by which share of the time emulated devices were late
}

// source is a job file.
func (s setting) source(m method) string {
	devices := "{kind: cpu, cpu: {count: 1, threads: 1}}"
	if s.dictated > 0 {
		devices = fmt.Sprintf("{kind: emulated, cpu: {threads: 1}, emulated: {count: 1, compute: true, flops: %.6g}}", (s.forwardFLOPs+s.backwardFLOPs)/s.dictated.Seconds())
	}
	return fmt.Sprintf(`version: 1
name: speed
model: {family: gpt2, config: {n_layer: %d, n_head: %d, n_embd: %d, n_positions: %d, vocab_size: %d, tie_word_embeddings: %t}}
data: {files: [%s], holdout: 0.1}
optimizer: {name: adamw, lr: 1e-3}
train: {steps: 2000000, batch: %d, eval_samples: 1}
stages: 1
pipelines: %d
groups: %d
micro_batches: 1
schedule: 1f1b
averaging: %s
center: {commit_every: 1000000, state: center}
devices: %s
`, s.layers, s.heads, s.width, s.sequence, s.vocabulary, s.tied, corpus, s.batch, s.replicas, s.replicas, m.section(), devices)
}

// train runs a job with a method until enough steps were seen, and cancels it.
func (c *cluster) train(ctx context.Context, s setting, m method) (r reading, err error) {
	client := c.nodes[0].client
	answer, err := client.Submit(ctx, api.SubmitRequest{File: "speed.yaml", Source: s.source(m), Base: c.dir})
	if err != nil {
		return r, fmt.Errorf("submit a job with %v: %w", m, err)
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("a job with %v: %w%s", m, err, c.why(ctx, answer.ID))
		}
		err = errors.Join(err, c.cancel(context.WithoutCancel(ctx), answer.ID))
	}()
	return c.watch(ctx, s, m, answer.ID)
}

// why is what the daemon says of a job, for an error.
func (c *cluster) why(ctx context.Context, id string) string {
	status, err := c.nodes[0].client.Job(ctx, id)
	if err != nil {
		return ""
	}
	return fmt.Sprintf("; it is %s: %s", status.State, status.Reason)
}

// cancel ends a job and waits until its workers have ended.
func (c *cluster) cancel(ctx context.Context, id string) error {
	if _, err := c.nodes[0].client.Cancel(ctx, id); err != nil {
		return fmt.Errorf("cancel job %s: %w", id, err)
	}
	return rig.Poll(ctx, stopBound, "the end of the job", func() bool {
		s, err := c.nodes[0].client.Job(ctx, id)
		return err == nil && s.State.Ended() && len(rig.Processes("\x00--assignment\x00", c.dir+"/")) == 0
	})
}

// eye looks at the worker of a host.
type eye struct {
	*node
	client control.Client
	seen   sightings
	last   control.Status
	before usage // when the window began
}

// usage is what a worker has used so far.
type usage struct {
	at   time.Duration
	cpu  float64 // seconds
	sent float64 // bytes
}

// watch looks at the workers of a job until all of them have done the steps of the window.
func (c *cluster) watch(ctx context.Context, s setting, m method, id string) (r reading, err error) {
	w := window{warmup: s.warmup, least: s.least, tau: m.tau, lasts: s.lasts}
	var eyes []*eye
	for _, n := range c.nodes {
		dial := func(ctx context.Context, socket string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		}
		e := &eye{node: n, client: control.NewClient(filepath.Join(n.state(), "jobs", id), dial)}
		defer e.client.Close()
		eyes = append(eyes, e)
	}
	start, began := time.Now(), false
	progressed := start
	for {
		all, ready := true, true
		for _, e := range eyes {
			if e.look(ctx, start) {
				progressed = time.Now()
			}
			ready = ready && w.began(e.seen)
			_, _, ok := w.measure(e.seen)
			all = all && ok
		}
		if ready && !began {
			began = true
			for _, e := range eyes {
				if e.before, err = e.usage(start); err != nil {
					return r, err
				}
			}
		}
		switch {
		case all:
			return summary(w, eyes, start)
		case ctx.Err() != nil:
			return r, context.Cause(ctx)
		case time.Since(progressed) > stepBound:
			return r, fmt.Errorf("no step within %v; the replicas have done %s", stepBound, done(eyes))
		}
		rig.Pause(ctx, lookEvery)
	}
}

// done lists the steps that replicas have done.
func done(eyes []*eye) string {
	var steps []string
	for _, e := range eyes {
		steps = append(steps, strconv.FormatUint(e.last.Progress.Step, 10))
	}
	return strings.Join(steps, ", ")
}

// look asks the worker, and reports whether it has done a step more. One that is not there yet has done none.
func (e *eye) look(ctx context.Context, start time.Time) bool {
	s, err := e.client.Status(ctx)
	if err != nil {
		return false
	}
	before := len(e.seen)
	e.last = s
	e.seen.see(time.Since(start), s.Progress.Step)
	return len(e.seen) > before
}

// usage reads what the worker and the interface of its host have counted.
func (e *eye) usage(start time.Time) (u usage, err error) {
	pid, err := e.worker()
	if err != nil {
		return u, err
	}
	p, err := procfs.NewProc(pid)
	if err != nil {
		return u, fmt.Errorf("the worker on %s: %w", e.on.Name, err)
	}
	stat, err := p.Stat()
	if err != nil {
		return u, fmt.Errorf("the worker on %s: %w", e.on.Name, err)
	}
	interfaces, err := p.NetDev()
	if err != nil {
		return u, fmt.Errorf("the interfaces of %s: %w", e.on.Name, err)
	}
	return usage{time.Since(start), stat.CPUTime(), float64(interfaces["eth0"].TxBytes)}, nil
}

// summary is the mean over the replicas.
func summary(w window, eyes []*eye, start time.Time) (r reading, err error) {
	each := 1 / float64(len(eyes))
	rate := 0.0
	for _, e := range eyes {
		seconds, _, _ := w.measure(e.seen)
		rate += each / seconds
		after, err := e.usage(start)
		if err != nil {
			return r, err
		}
		steps := (after.at - e.before.at).Seconds() / seconds
		r.cpu += each * (after.cpu - e.before.cpu) / steps
		r.sent += each * (after.sent - e.before.sent) / steps
		for _, st := range e.last.Progress.StageStatus {
			if st.Lag != nil {
				r.lag += each * *st.Lag
			}
		}
	}
	r.step = 1 / rate
	return r, nil
}
