package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/avgpipe/avgpipe/bench/internal/rig"
	"github.com/avgpipe/avgpipe/internal/api"
)

// kind is a job that trials submit. It computes in plain Go, so that its bits are the same in every build.
type kind struct {
	name   string
	source string
	rounds int  // that it trains; the steps in its file are those of all pipelines
	tau    int  // steps of a round; 0: one
	tuned  bool // it leaves counts open, none of which changes its bits
	wide   bool // it has a stage or a group on each host, where each has a core
}

// corpus is the data file of all jobs.
const corpus = "corpus.txt"

const twoStages = `version: 1
name: two-stages
model: {family: gpt2, config: {n_layer: 2, n_head: 2, n_embd: 16, n_positions: 16, vocab_size: 256}}
data: {files: [corpus.txt], holdout: 0.1}
optimizer: {name: adamw, lr: 3e-3, clip_norm: 1}
train: {steps: 160, batch: 4, eval_samples: 4}
stages: 2
pipelines: 2
micro_batches: 2
schedule: 1f1b
center: {commit_every: 5}
devices: {kind: ref, cpu: {count: 2, threads: 1}}
seed: 3
`

// boundOfDrift makes some rounds synchronous: pipelines of these jobs are about so far apart.
const boundOfDrift = "averaging: {pull: old, alpha: 0.1, max_drift: 0.02}"

// kinds are the jobs of one host, the plain ones first.
var kinds = []kind{
	{name: "two-stages", rounds: 80, source: twoStages},
	{name: "one-stage", rounds: 80, source: strings.NewReplacer("two-stages", "one-stage", "stages: 2", "stages: 1", "count: 2", "count: 1", "seed: 3", "seed: 4").Replace(twoStages)},
	{name: "sgd", rounds: 80, source: strings.NewReplacer("two-stages", "sgd", "{name: adamw, lr: 3e-3, clip_norm: 1}", "{name: sgd, momentum: 0.9, lr: 1e-2}", "pipelines: 2", "pipelines: 1",
		"steps: 160", "steps: 80", "commit_every: 5", "commit_every: 3").Replace(twoStages)},
	{name: "late", rounds: 80, source: strings.NewReplacer("two-stages", "late", "pipelines: 2", "pipelines: 2\naveraging: {method: sapipe, stale_layers: 2, prediction: local_prev_sync, compensation: outer}").Replace(twoStages)},
	{name: "drift", rounds: 80, source: strings.NewReplacer("two-stages", "drift", "pipelines: 2", "pipelines: 2\n"+boundOfDrift).Replace(twoStages)},
	{name: "streaming", rounds: 80, tau: 2, source: strings.NewReplacer("two-stages", "streaming", "pipelines: 2", "pipelines: 2\naveraging: {method: streaming-diloco, tau: 2, fragments: 2}", "steps: 160", "steps: 320").Replace(twoStages)},
	{name: "tuned", rounds: 80, tuned: true, source: strings.NewReplacer("two-stages", "tuned", "schedule: 1f1b", "schedule: auto").Replace(twoStages)},
}

// onSeveral is a job with its stages and its shards on two hosts, of several seconds.
var onSeveral = strings.NewReplacer("two-stages", "spread", "steps: 160", "steps: 1600", "commit_every: 5", "commit_every: 10, replicas: 2",
	"seed: 3", "seed: 3\nplacement: spread").Replace(twoStages)

// clusterKinds are the jobs of so many hosts.
func clusterKinds(hosts int) []kind {
	each := strconv.Itoa(hosts)
	groups := strings.NewReplacer("name: spread", "name: groups", "pipelines: 2", "pipelines: 2\ngroups: 2", "stages: 2", "stages: 1", "count: 2", "count: 1", "placement: spread", "placement: pack").Replace(onSeveral)
	all := []kind{
		{name: "spread", rounds: 800, source: onSeveral},
		{name: "packed", rounds: 800, source: strings.NewReplacer("name: spread", "name: packed", "placement: spread", "placement: pack").Replace(onSeveral)},
		{name: "groups", rounds: 800, source: groups},
		{name: "gradients", rounds: 800, source: strings.NewReplacer("name: groups", "name: gradients", "groups: 2",
			"groups: 2\naveraging: {method: sapipe, stale_layers: 2, prediction: local_prev_sync, compensation: diag, precision: int8}").Replace(groups)},
		{name: "stage-each", rounds: 800, wide: true, source: strings.NewReplacer("name: spread", "name: stage-each", "n_layer: 2", "n_layer: "+each, "stages: 2", "stages: "+each, "count: 2", "count: "+each).Replace(onSeveral)},
		{name: "group-each", rounds: 800, wide: true, source: strings.NewReplacer("name: groups", "name: group-each", "pipelines: 2", "pipelines: "+each, "groups: 2", "groups: "+each,
			"steps: 1600", "steps: "+strconv.Itoa(800*hosts)).Replace(groups)},
	}
	return append(all, averagings(groups)...)
}

// averagings are jobs of two groups, each on a host of its own, one for each way in which groups wait for each other.
func averagings(groups string) (all []kind) {
	for _, a := range []struct {
		name, section string
		tau           int
	}{
		{"drift", boundOfDrift, 1},
		{"allreduce", "averaging: {method: allreduce}", 1},
		{"localsgd", "averaging: {method: localsgd, tau: 2}", 2},
		{"diloco", "averaging: {method: diloco, tau: 2}", 2},
		{"streaming", "averaging: {method: streaming-diloco, tau: 2, fragments: 2}", 2},
	} {
		all = append(all, kind{name: a.name, rounds: 800, tau: a.tau, source: strings.NewReplacer("name: groups", "name: "+a.name, "groups: 2", "groups: 2\n"+a.section,
			"steps: 1600", "steps: "+strconv.Itoa(1600*a.tau)).Replace(groups)})
	}
	return all
}

// submit submits a job of a kind, once, however often it asks: nodes may know of no leader for a moment, and say that one should ask again.
func (w *testbed) submit(ctx context.Context, k *kind) (id string, err error) {
	request := api.SubmitRequest{File: k.name + ".yaml", Source: k.source, Base: filepath.Join(w.dir, "data"), Key: rand.Text()}
	var answer api.SubmitResponse
	waited := rig.Poll(ctx, startBound, "an answer to a submission", func() bool {
		err = w.any(ctx, func(c *api.Client) (err error) {
			answer, err = c.Submit(ctx, request)
			return err
		})
		return err == nil
	})
	if waited != nil {
		return "", fmt.Errorf("submit %s: %w: %w", k.name, waited, err)
	}
	return answer.ID, nil
}

// trialJob is a submitted job and what was seen of it.
type trialJob struct {
	kind    *kind
	id      string
	shrinks bool // it lost a host for good while it trained, and has to end with fewer groups or stages

	// How it ended, and which expectation was applied; "": neither is known yet.
	ended, expected string

	mu       sync.Mutex
	last     api.JobStatus
	problems []error
}

// watch follows a job until ctx ends, across daemons that come and go, and notes what must never be seen.
func (w *testbed) watch(ctx context.Context, j *trialJob) {
	often := time.Duration(len(w.hosts)) * 20 * time.Millisecond // jobs of several hosts take longer, and each answer takes all hosts' cores
	for ; ctx.Err() == nil; rig.Pause(ctx, often) {
		old := w.old.Load()
		if status, err := w.job(ctx, j.id); err == nil && w.old.Load() == old { // an answer that says that it is old may be older than the last one
			w.see(j, status)
		}
	}
}

// job asks for a job's status.
func (w *testbed) job(ctx context.Context, id string) (s api.JobStatus, err error) {
	err = w.any(ctx, func(c *api.Client) (err error) {
		ctx, cancel := context.WithTimeout(ctx, responseTimeout) // one that has just started does not know yet; the next one may
		defer cancel()
		s, err = c.Job(ctx, id)
		return err
	})
	return s, err
}

// see notes a status of a job.
func (w *testbed) see(j *trialJob, s api.JobStatus) {
	j.mu.Lock()
	defer j.mu.Unlock()
	last := j.last
	j.last = s
	if s.State == last.State && s.Generation == last.Generation && s.CommittedRound >= last.CommittedRound {
		return // what is wrong with it is noted
	}
	w.say("job %s is %s, generation %d, round %d committed: %s", j.id, s.State, s.Generation, s.CommittedRound, s.Reason)
	problem := ""
	switch {
	case s.State == api.Failed || s.State == api.Cancelled:
	case s.CommittedRound < last.CommittedRound && !w.mayGoBack(s.Reason):
		problem = fmt.Sprintf(", and round %d was committed", last.CommittedRound)
	case s.Generation < last.Generation:
		problem = fmt.Sprintf(", and it was in generation %d", last.Generation)
	case last.State == api.Done && s.State != api.Done:
		problem = ", and it was done"
	default:
		return
	}
	j.problems = append(j.problems, fmt.Errorf("job %s is %s, generation %d, round %d committed%s: %s", j.id, s.State, s.Generation, s.CommittedRound, problem, s.Reason))
}

// mayGoBack reports whether an older round may take a committed one's place: a shard was damaged, and the reason names it.
func (w *testbed) mayGoBack(reason string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.ContainsFunc(w.damaged, func(shard string) bool { return strings.Contains(reason, shard) })
}

// status is what was last seen of the job.
func (j *trialJob) status() api.JobStatus {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.last
}
