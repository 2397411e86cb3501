package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/avgpipe/avgpipe/bench/internal/rig"
	"github.com/avgpipe/avgpipe/internal/api"
)

// mix is how many jobs stand how.
type mix struct{ running, queued, done, failed, cancelled int }

func (m mix) all() int { return m.running + m.queued + m.done + m.failed + m.cancelled }

// jobsBound is how long jobs may take until they stand as they are to.
const jobsBound = 10 * time.Minute

// submitBound is how long a job may take to be submitted: nodes that share few cores and a disk may lose the one that leads, and elect another.
const submitBound = 2 * time.Minute

// submitters is how many jobs are submitted at once.
const submitters = 2

// short ends after two rounds; long goes on, on four nodes, with two copies of each shard and a commit every 30 rounds, which take half a minute.
const (
	short = `version: 1
name: NAME
model: {family: gpt2, config: {vocab_size: 256, n_positions: 16, n_embd: 8, n_layer: 4, n_head: 2}}
data: {files: [data.txt]}
optimizer: {lr: 0.01}
train: {steps: 2, batch: 4}
stages: 1
pipelines: 1
micro_batches: 4
center: {commit_every: 30}
devices: {kind: ref, cpu: {count: 1, threads: 1}}
`
)

var long = strings.NewReplacer("steps: 2,", "steps: 2000000,", "stages: 1", "stages: 4\nplacement: spread", "commit_every: 30", "commit_every: 30, replicas: 2", "count: 1", "count: 4").Replace(short)

// fill submits jobs and waits until they stand as they are to: first those that end, then those that run and those that find no room.
func (c *testbed) fill(ctx context.Context, m mix, say func(string)) error {
	text := strings.Repeat("abcdefghijklmnopqrstuvwxyz", 2500)
	if err := os.WriteFile(filepath.Join(c.dir, "data.txt"), []byte(text), 0o600); err != nil {
		return err
	}
	if err := c.submit(ctx, m.done, short, "brief"); err != nil {
		return err
	}
	say("jobs are submitted that will be done")
	if err := c.submit(ctx, m.failed, short, "nan-at-1"); err != nil {
		return err
	}
	if err := c.stand(ctx, map[api.State]int{api.Done: m.done, api.Failed: m.failed}); err != nil {
		return err
	}
	say("jobs have ended")
	if err := c.submit(ctx, m.running, long, "steady"); err != nil {
		return err
	}
	if err := c.stand(ctx, map[api.State]int{api.Running: m.running}); err != nil {
		return err
	}
	say("jobs run")
	if err := c.submit(ctx, m.cancelled, long, "unwanted"); err != nil {
		return err
	}
	jobs, err := c.voters[0].client.Jobs(ctx)
	if err != nil {
		return err
	}
	for _, j := range jobs {
		if j.Name == "unwanted" {
			if _, err := c.voters[0].client.Cancel(ctx, j.ID); err != nil {
				return err
			}
		}
	}
	if err := c.submit(ctx, m.queued, long, "patient"); err != nil {
		return err
	}
	return c.stand(ctx, map[api.State]int{api.Cancelled: m.cancelled, api.Queued: m.queued, api.Running: m.running})
}

// submit submits jobs of a name.
func (c *testbed) submit(ctx context.Context, count int, source, name string) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(submitters)
	for range count {
		group.Go(func() error {
			request := api.SubmitRequest{File: name + ".yaml", Source: strings.Replace(source, "NAME", name, 1), Base: c.dir}
			var last error
			err := rig.Poll(ctx, submitBound, "submit "+name, func() bool { // another node may begin to lead meanwhile
				if last != nil {
					pause(ctx, time.Second)
				}
				_, last = c.voters[0].client.Submit(ctx, request)
				return last == nil
			})
			return errors.Join(err, last)
		})
	}
	return group.Wait()
}

// stand waits until so many jobs are in some states.
func (c *testbed) stand(ctx context.Context, wanted map[api.State]int) error {
	found := map[api.State]int{}
	reasons := map[string]int{}
	err := rig.Poll(ctx, jobsBound, "jobs that stand as they are to", func() bool {
		pause(ctx, time.Second)
		jobs, err := c.voters[0].client.Jobs(ctx)
		clear(found)
		clear(reasons)
		for i := range jobs {
			found[jobs[i].State]++
			reasons[string(jobs[i].State)+": "+jobs[i].Reason]++
		}
		for state, count := range wanted {
			if err != nil || found[state] < count {
				return false
			}
		}
		return true
	})
	if err != nil {
		err = fmt.Errorf("%w: %v, wanted %v", err, found, wanted)
	}
	return err
}
