package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/avgpipe/avgpipe/bench/internal/report"
	"github.com/avgpipe/avgpipe/internal/cluster"
	"github.com/avgpipe/avgpipe/internal/cluster/raftlog"
	"github.com/avgpipe/avgpipe/internal/shard"
)

// Of the jobs whose commits fill Raft's files: each commits twice a minute, its round has four shards with two copies each, and what was admitted of it takes
// some kilobytes.
const (
	commitsAnHour = 120
	shards        = 4
	keptRounds    = 2
	specBytes     = 4 << 10
)

// measureDisk has one node's Raft keep the commits of hours, as fast as it can, and looks at its files after each hour.
func measureDisk(ctx context.Context, o options) (figures []report.Figure, err error) {
	dir, err := os.MkdirTemp("", "control-raft-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	log, err := raftlog.Open(raftlog.Config{Dir: dir, NodeID: "v1", Version: version, Logger: zap.NewNop()})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, log.Close()) }()
	if err := log.WaitReady(ctx); err != nil {
		return nil, err
	}
	running, err := fillLog(ctx, log, o.mix)
	if err != nil {
		return nil, err
	}
	var sizes []int64
	for hour := range o.hours {
		for i := range commitsAnHour {
			if err := commitAll(ctx, log, running, uint64(hour*commitsAnHour+i+1)); err != nil { //nolint:gosec // a count
				return nil, err
			}
		}
		bytes, err := sizeOf(dir)
		if err != nil {
			return nil, err
		}
		sizes = append(sizes, bytes)
	}
	most := sizes[0]
	for _, s := range sizes {
		most = max(most, s)
	}
	conditions := map[string]any{"jobs": o.mix.all(), "running": o.mix.running, "hours": o.hours, "commits": o.hours * commitsAnHour * o.mix.running, "bytes after each hour": sizes}
	return []report.Figure{{Metric: "Raft's files while commits are made, the most after any hour", Value: float64(most) / 1e6, Unit: "MB", Bar: 200, Aim: 100, AtMost: true, Conditions: conditions}}, nil
}

// fillLog submits all jobs, and returns the numbers of those that run.
func fillLog(ctx context.Context, log *raftlog.Log, m mix) (running []string, err error) {
	spec, err := json.Marshal(strings.Repeat("s", specBytes))
	if err != nil {
		return nil, err
	}
	for i := range m.all() {
		r, err := log.Apply(ctx, &cluster.SubmitJob{Name: "job", File: "job.yaml", Base: "/", Submitted: time.Now(), Spec: spec})
		if err != nil {
			return nil, fmt.Errorf("job %d: %w", i, err)
		}
		if i >= m.running {
			_, err = log.Apply(ctx, &cluster.EndJob{Job: r.Job, State: cluster.Done, Reason: "it is one of those that are done", At: time.Now()})
		} else {
			running = append(running, r.Job)
			_, err = log.Apply(ctx, &cluster.BeginGeneration{Job: r.Job, Placement: json.RawMessage(`{}`)})
		}
		if err != nil {
			return nil, fmt.Errorf("job %s: %w", r.Job, err)
		}
	}
	return running, nil
}

// commitAll commits a round of all jobs, which propose at the same time.
func commitAll(ctx context.Context, log *raftlog.Log, jobs []string, round uint64) error {
	group, ctx := errgroup.WithContext(ctx)
	for i, job := range jobs {
		group.Go(func() error {
			j, err := log.State().Job(job)
			if err != nil {
				return err
			}
			if _, err := log.Apply(ctx, &cluster.BeginCommit{Job: job, Generation: j.Generation, Round: round}); err != nil {
				return err
			}
			_, err = log.Apply(ctx, &cluster.CommitRound{Job: job, Generation: j.Generation, Round: round, Keep: keptRounds, Manifest: roundOf(job, i, j.Generation, round)})
			return err
		})
	}
	return group.Wait()
}

// roundOf is the manifest of a round.
func roundOf(job string, number int, generation, round uint64) cluster.Manifest {
	m := cluster.Manifest{Job: job, Generation: generation, Round: round, Stages: shards, SamplesSeen: 32 * round, Cursors: []shard.Cursor{{Step: round}}, Meta: json.RawMessage(`{"loss":2.5}`)}
	for k := range shards {
		digest := fmt.Sprintf("%064x", (uint64(number)<<32|round)*shards+uint64(k)) //nolint:gosec // counts
		node := func(i int) string { return "n" + strconv.Itoa(number*shards+i%shards) }
		m.Shards = append(m.Shards, cluster.ShardRef{Stage: k, Digest: shard.Digest(digest), Bytes: 1 << 30, Nodes: []string{node(k), node(k + 1)}})
	}
	return m
}
