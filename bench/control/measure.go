package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/prometheus/procfs"

	"github.com/avgpipe/avgpipe/bench/internal/report"
	"github.com/avgpipe/avgpipe/internal/api"
)

// settle is the pause before something is measured.
const settle = 20 * time.Second

// asked is how often each request is measured.
const asked = 200

// measureCluster measures the node that leads while jobs make progress, and then what its API takes.
func measureCluster(ctx context.Context, o options) (figures []report.Figure, err error) {
	if o.profile != "" { // not after minutes
		if err := os.MkdirAll(o.profile, 0o755); err != nil { //nolint:gosec // profiles are no secret
			return nil, err
		}
	}
	c, err := newTestbed()
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil && o.profile != "" {
			err = errors.Join(err, c.keepLogs(o.profile))
		}
		err = errors.Join(err, c.end())
	}()
	began := time.Now()
	say := func(what string) { fmt.Fprintf(os.Stderr, "%4.0f s  %s\n", time.Since(began).Seconds(), what) }
	if err := c.form(ctx, o, say); err != nil {
		return nil, err
	}
	say("all nodes are members")
	if err := c.fill(ctx, o.mix, say); err != nil {
		return nil, err
	}
	say("all jobs stand as they are to")
	pause(ctx, settle) // what the last of them leave to do
	leads, err := c.leader(ctx)
	if err != nil {
		return nil, err
	}
	conditions := map[string]any{"nodes": o.nodes + o.voters, "voters": o.voters, "jobs": o.mix.all(), "running": o.mix.running, "queued": o.mix.queued, "workers": 4 * o.mix.running}
	usage, late, err := c.measureProcessor(ctx, leads, o)
	if err != nil {
		return nil, err
	}
	conditions["cores that the herd took"] = usage.herd
	defer func() {
		for i := range figures {
			figures[i].Void = late.why()
		}
	}()
	say("processor time is measured: the herd took " + strconv.FormatFloat(usage.herd, 'f', 2, 64) + " cores")
	figures = append(figures, report.Figure{Metric: "processor time of the daemon that leads", Value: 100 * usage.cores, Unit: "% of a core", Bar: 20, Aim: 10, AtMost: true, Conditions: conditions},
		report.Figure{Metric: "memory of the daemon that leads", Value: usage.memory / 1e6, Unit: "MB", Bar: 500, Aim: 200, AtMost: true, Conditions: conditions})
	if o.profile != "" {
		if err := errors.Join(c.keepProfile(ctx, leads, o.profile), c.profileHerd(ctx, o.profile, "herd.cpu")); err != nil {
			return figures, err
		}
		say("profiles are written")
	}
	requests, err := measureRequests(ctx, leads.client, conditions)
	figures = append(figures, requests...)
	if err = errors.Join(err, late.look(ctx, leads.client), late.count(ctx, leads.client, o.mix.running)); err != nil {
		return figures, err
	}
	bytes, err := sizeOf(filepath.Join(leads.Dir, "raft"))
	return append(figures, report.Figure{Metric: "Raft's files of the node that leads", Value: float64(bytes) / 1e6, Unit: "MB", Bar: 100, Aim: 50, AtMost: true, Conditions: conditions}), err
}

// usage is what processes take: the one that leads, and that of the herd.
type usage struct{ cores, memory, herd float64 }

// lookEvery is how often it is looked for nodes that are late while something is measured.
const lookEvery = 5 * time.Second

// measureProcessor is what a node takes for a while, and which nodes were late meanwhile.
func (c *testbed) measureProcessor(ctx context.Context, v *voter, o options) (u usage, l late, err error) {
	leads, err := took(v.command.Process.Pid)
	if err != nil {
		return u, l, err
	}
	herd, err := took(c.herd.Process.Pid)
	if err != nil {
		return u, l, err
	}
	for began := time.Now(); time.Since(began) < o.steady && ctx.Err() == nil; {
		pause(ctx, min(lookEvery, o.steady-time.Since(began)))
		if err := l.look(ctx, v.client); err != nil {
			return u, l, err
		}
	}
	if u.cores, u.memory, err = leads(); err == nil {
		u.herd, _, err = herd() // its memory is that of no host
	}
	return u, l, err
}

// took returns what says how many cores a process has taken since then, and the bytes of memory that it has.
func took(pid int) (since func() (cores, memory float64, err error), err error) {
	p, err := procfs.NewProc(pid)
	if err != nil {
		return nil, err
	}
	before, err := p.Stat()
	began := time.Now()
	return func() (cores, memory float64, err error) {
		after, err := p.Stat()
		return (after.CPUTime() - before.CPUTime()) / time.Since(began).Seconds(), float64(after.ResidentMemory()), err
	}, err
}

// late is what was not as in a cluster whose nodes have a host each, so that what was measured says nothing of that.
type late struct {
	nodes map[string]string // by name, how it was
	jobs  int               // that ran at the end
	lack  bool              // fewer than were to
}

// look notes the nodes that do not answer in time.
func (l *late) look(ctx context.Context, client *api.Client) error {
	nodes, err := client.Nodes(ctx)
	if err != nil {
		return err
	}
	for i := range nodes {
		if n := &nodes[i]; n.State != api.NodeAlive && n.State != api.NodeDrained {
			if l.nodes == nil {
				l.nodes = map[string]string{}
			}
			l.nodes[n.ID] = string(n.State)
		}
	}
	return nil
}

// count notes whether as many jobs run as are to.
func (l *late) count(ctx context.Context, client *api.Client, wanted int) error {
	jobs, err := client.Jobs(ctx)
	for i := range jobs {
		if jobs[i].State == api.Running {
			l.jobs++
		}
	}
	l.lack = l.jobs < wanted
	return err
}

// why says why what was measured does not count; "" where it does.
func (l *late) why() string {
	switch {
	case len(l.nodes) > 0:
		names := slices.Sorted(maps.Keys(l.nodes))
		return fmt.Sprintf("%d nodes were late, as %s, which was %s", len(names), names[0], l.nodes[names[0]])
	case l.lack:
		return fmt.Sprintf("only %d jobs ran", l.jobs)
	}
	return ""
}

// keepProfile has a node write profiles, and copies them.
func (c *testbed) keepProfile(ctx context.Context, v *voter, to string) error {
	if err := v.command.Process.Signal(syscall.SIGUSR1); err != nil {
		return err
	}
	pause(ctx, profiled+2*time.Second)
	return errors.Join(
		keep(filepath.Join(v.Dir, "profiles.cpu"), to, "leader.cpu"), keep(filepath.Join(v.Dir, "profiles.heap"), to, "leader.heap"), c.keepLogs(to))
}

// keepLogs copies what the nodes that vote have logged, and one of the herd.
func (c *testbed) keepLogs(to string) (err error) {
	for _, v := range c.voters {
		err = errors.Join(err, keep(v.Dir+".log", to, v.Name+".log"))
	}
	return errors.Join(err, keep(filepath.Join(c.memory, "n001.log"), to, "n001.log"))
}

// profileHerd has the herd write a profile of what it does for a while, and copies it.
func (c *testbed) profileHerd(ctx context.Context, to, name string) error {
	if err := c.herd.Process.Signal(syscall.SIGUSR1); err != nil {
		return err
	}
	pause(ctx, profiled+2*time.Second)
	return keep(filepath.Join(c.dir, "herd.cpu"), to, name)
}

// keep copies a file to a directory.
func keep(file, to, name string) error {
	text, err := os.ReadFile(file)
	if err == nil {
		err = os.WriteFile(filepath.Join(to, name), text, 0o600)
	}
	return err
}

// measureRequests is how long the API takes, with its answer read.
func measureRequests(ctx context.Context, client *api.Client, conditions map[string]any) (figures []report.Figure, err error) {
	jobs, err := client.Jobs(ctx)
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(jobs, func(j api.JobStatus) bool { return j.State == api.Running })
	if i < 0 {
		return nil, errors.New("no job runs")
	}
	id := jobs[i].ID
	for _, r := range []struct {
		metric string
		ask    func() error
	}{
		{"99th percentile of the list of all jobs", func() error { _, err := client.Jobs(ctx); return err }},
		{"99th percentile of the status of a job", func() error { _, err := client.Job(ctx, id); return err }},
		{"99th percentile of the list of all nodes", func() error { _, err := client.Nodes(ctx); return err }},
	} {
		took := make([]float64, asked)
		for i := range took {
			began := time.Now()
			if err := r.ask(); err != nil {
				return figures, err
			}
			took[i] = 1000 * time.Since(began).Seconds()
			pause(ctx, 20*time.Millisecond)
		}
		slices.Sort(took)
		with := map[string]any{"median": report.Median(took), "longest": took[asked-1]}
		maps.Copy(with, conditions)
		figures = append(figures, report.Figure{Metric: r.metric, Value: took[asked*99/100], Unit: "ms", Bar: 100, Aim: 50, AtMost: true, Conditions: with})
	}
	return figures, nil
}

// sizeOf is the bytes of all files in a directory.
func sizeOf(dir string) (bytes int64, err error) {
	err = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // it has gone meanwhile
		}
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err == nil {
			bytes += info.Size()
		}
		return err
	})
	return bytes, err
}
