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
	"syscall"
	"time"

	"github.com/prometheus/procfs"

	"github.com/avgpipe/avgpipe/bench/internal/report"
	"github.com/avgpipe/avgpipe/internal/api"
)

// asked is how often each request is measured.
const asked = 200

// measureCluster measures the node that leads while jobs make progress, and then what its API takes.
func measureCluster(ctx context.Context, o options) (figures []report.Figure, err error) {
	c, err := newTestbed()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, c.end()) }()
	began := time.Now()
	say := func(what string) { fmt.Fprintf(os.Stderr, "%4.0f s  %s\n", time.Since(began).Seconds(), what) }
	if err := c.form(ctx, o); err != nil {
		return nil, err
	}
	say("all nodes are members")
	if err := c.fill(ctx, o.mix); err != nil {
		return nil, err
	}
	say("all jobs stand as they are to")
	pause(ctx, 10*time.Second) // what the last of them leave to do
	leads, err := c.leader(ctx)
	if err != nil {
		return nil, err
	}
	conditions := map[string]any{"nodes": o.nodes + o.voters, "voters": o.voters, "jobs": o.mix.all(), "running": o.mix.running, "queued": o.mix.queued, "workers": 4 * o.mix.running}
	usage, err := measureProcessor(ctx, leads, o.steady)
	if err != nil {
		return nil, err
	}
	say("processor time is measured")
	figures = append(figures, report.Figure{Metric: "processor time of the daemon that leads", Value: 100 * usage.cores, Unit: "% of a core", Bar: 20, Aim: 10, AtMost: true, Conditions: conditions},
		report.Figure{Metric: "memory of the daemon that leads", Value: usage.memory / 1e6, Unit: "MB", Bar: 500, Aim: 200, AtMost: true, Conditions: conditions})
	if o.profile != "" {
		if err := c.keepProfile(ctx, leads, o.profile); err != nil {
			return figures, err
		}
		say("profiles are written")
	}
	requests, err := measureRequests(ctx, leads.client, conditions)
	figures = append(figures, requests...)
	if err != nil {
		return figures, err
	}
	bytes, err := sizeOf(filepath.Join(leads.Dir, "raft"))
	return append(figures, report.Figure{Metric: "Raft's files of the node that leads", Value: float64(bytes) / 1e6, Unit: "MB", Bar: 100, Aim: 50, AtMost: true, Conditions: conditions}), err
}

// usage is what a process takes.
type usage struct{ cores, memory float64 }

// measureProcessor is what a node takes for a while.
func measureProcessor(ctx context.Context, v *voter, span time.Duration) (u usage, err error) {
	p, err := procfs.NewProc(v.command.Process.Pid)
	if err != nil {
		return u, err
	}
	before, err := p.Stat()
	if err != nil {
		return u, err
	}
	began := time.Now()
	pause(ctx, span)
	after, err := p.Stat()
	if err != nil {
		return u, err
	}
	return usage{(after.CPUTime() - before.CPUTime()) / time.Since(began).Seconds(), float64(after.ResidentMemory())}, nil
}

// keepProfile has a node write profiles, and copies them.
func (c *testbed) keepProfile(ctx context.Context, v *voter, to string) error {
	if err := v.command.Process.Signal(syscall.SIGUSR1); err != nil {
		return err
	}
	pause(ctx, profiled+2*time.Second)
	for _, kind := range []string{".cpu", ".heap"} {
		text, err := os.ReadFile(filepath.Join(v.Dir, "profiles"+kind))
		if err == nil {
			err = os.WriteFile(filepath.Join(to, "leader"+kind), text, 0o600)
		}
		if err != nil {
			return err
		}
	}
	for _, log := range []string{v.Dir + ".log", filepath.Join(c.memory, "n001.log")} {
		text, err := os.ReadFile(log)
		if err == nil {
			err = os.WriteFile(filepath.Join(to, filepath.Base(log)), text, 0o600)
		}
		if err != nil {
			return err
		}
	}
	return nil
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
