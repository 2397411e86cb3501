package main

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/avgpipe/avgpipe/bench/internal/rig"
	"github.com/avgpipe/avgpipe/internal/api"
)

// outcome is what a job ended with, and how it got there.
type outcome struct {
	model     string // SHA-256 of the exported weights
	status    api.JobStatus
	samples   api.Accounting
	pipelines int // the fewest that trained at a time
}

// expectation is what a job has to end with. Its name is for the report: each trial says which one held for its jobs, so that none is empty unnoticed.
type expectation struct {
	name string
	// holds says what is not as in an undisturbed run; "": nothing.
	holds func(got, undisturbed *outcome, k *kind) string
}

// The expectations. A job that went on with fewer stages has the bits of an undisturbed one (docs/decisions/0102). One that went on without some of its groups of pipelines
// (docs/decisions/0104) has trained otherwise from there on, in other rounds; what it was to train on, it has.
var (
	sameBits    = expectation{"the bits of an undisturbed run", haveSameBits}
	fewerStages = expectation{"the same bits, with fewer stages", haveSameBits}
	fewerGroups = expectation{"all samples once and the loss, with fewer groups", haveLearned}
)

// expected is what is expected of a job, by how it got there.
func (o *outcome) expected(undisturbed *outcome) expectation {
	switch {
	case o.pipelines < undisturbed.pipelines:
		return fewerGroups
	case o.status.Stages < undisturbed.status.Stages:
		return fewerStages
	}
	return sameBits
}

// reduced reports whether a job ended with fewer groups or stages than it had.
func (o *outcome) reduced(undisturbed *outcome) bool {
	return o.status.Stages < undisturbed.status.Stages || o.status.Groups < undisturbed.status.Groups
}

func haveSameBits(got, undisturbed *outcome, k *kind) string {
	rounds, steps := uint64(k.rounds), uint64(k.rounds*max(1, k.tau)) //nolint:gosec // counts
	switch {
	case got.status.CommittedRound != rounds || got.status.Step != steps:
		return fmt.Sprintf("step %d, round %d committed, expected %d and %d", got.status.Step, got.status.CommittedRound, steps, rounds)
	case got.model != undisturbed.model || got.status.SamplesSeen != undisturbed.status.SamplesSeen:
		return fmt.Sprintf("model %s after %d samples, undisturbed %s after %d", got.model, got.status.SamplesSeen, undisturbed.model, undisturbed.status.SamplesSeen)
	}
	return ""
}

// lossNoise is by how much of what an undisturbed run learns a job that lost groups may end with a higher loss: a center of fewer pipelines is the mean of fewer. README.md
// has what was seen.
const lossNoise = 0.02

func haveLearned(got, undisturbed *outcome, _ *kind) string {
	s, want := &got.status, &undisturbed.status
	// Its rounds are whole, with as many samples as pipelines are left: the last one may pass the budget.
	if most := want.SamplesSeen * (want.Step + 1) / want.Step; s.SamplesSeen < want.SamplesSeen || s.SamplesSeen >= most {
		return fmt.Sprintf("%d samples, expected %d, or more by less than a round", s.SamplesSeen, want.SamplesSeen)
	}
	loss, ref, first := s.EvalLoss, want.EvalLoss, want.InitialLoss
	if loss == nil { // it was only on the host that was lost
		loss, ref = s.Loss, want.Loss
	}
	if loss == nil || ref == nil || first == nil || *loss > *ref+lossNoise*(*first-*ref) {
		return fmt.Sprintf("loss %s, undisturbed %s, from %s at first", said(loss), said(ref), said(first))
	}
	return ""
}

// said is a loss for people.
func said(loss *float64) string {
	if loss == nil {
		return "not known"
	}
	return fmt.Sprintf("%.4f", *loss)
}

// check compares how a job ended with an undisturbed run, and notes what was expected.
func (w *testbed) check(j *trialJob, got, undisturbed *outcome) error {
	as := got.expected(undisturbed)
	j.expected = as.name
	j.ended = fmt.Sprintf("%s ended with %d of %d groups of %d of %d stages: %s", j.kind.name, got.status.Groups, undisturbed.status.Groups, got.status.Stages, undisturbed.status.Stages, as.name)
	w.say("job %s: %s; round %d, %d samples; loss on held-out data %s, undisturbed %s; of training %s, undisturbed %s", j.id, j.ended, got.status.CommittedRound,
		got.status.SamplesSeen, said(got.status.EvalLoss), said(undisturbed.status.EvalLoss), said(got.status.Loss), said(undisturbed.status.Loss))
	if problem := as.holds(got, undisturbed, j.kind); problem != "" {
		return fmt.Errorf("job %s (%s): %s", j.id, j.ended, problem)
	}
	if j.shrinks && !got.reduced(undisturbed) {
		return fmt.Errorf("job %s (%s): a host was away for good before it was done, so it had to end with fewer", j.id, j.ended)
	}
	return nil
}

// outcome returns how a job has ended, which must be done, with each sample of its budget, and of the round that it ends in, consumed once.
func (w *testbed) outcome(ctx context.Context, j *trialJob) (*outcome, error) {
	got := &outcome{}
	var err error
	if waited := rig.Poll(ctx, drainBound, "an answer that is not old", func() bool { // as that of a node that stood still until now is
		old := w.old.Load()
		got.status, err = w.job(ctx, j.id)
		return err == nil && w.old.Load() == old
	}); waited != nil {
		return nil, errors.Join(waited, err)
	}
	s, a := &got.status, &got.samples
	if s.State != api.Done {
		return nil, fmt.Errorf("job %s is %s at step %d, round %d committed, expected done: %s", j.id, s.State, s.Step, s.CommittedRound, s.Reason)
	}
	if err := w.any(ctx, func(c *api.Client) (err error) { *a, err = c.Audit(ctx, j.id); return err }); err != nil {
		return nil, fmt.Errorf("account for the samples of job %s: %w", j.id, err)
	}
	if !a.Exact || a.Round != s.CommittedRound || a.Samples != s.SamplesSeen || s.SamplesSeen < s.BudgetSamples || len(a.Stretches) == 0 {
		return nil, fmt.Errorf("job %s consumed %d samples of a budget of %d up to round %d; accounted for are %d up to round %d in %d stretches: %s",
			j.id, s.SamplesSeen, s.BudgetSamples, s.CommittedRound, a.Samples, a.Round, len(a.Stretches), strings.Join(a.Faults, "; "))
	}
	got.pipelines = len(a.Stretches[0].Pipelines)
	for _, stretch := range a.Stretches {
		got.pipelines = min(got.pipelines, len(stretch.Pipelines))
	}
	got.model, err = w.model(ctx, j.id)
	return got, err
}

// model is the digest of the weights that a job exports.
func (w *testbed) model(ctx context.Context, id string) (string, error) {
	var archive bytes.Buffer
	err := w.any(ctx, func(c *api.Client) error {
		archive.Reset()
		return c.Model(ctx, id, &archive)
	})
	if err != nil {
		return "", err
	}
	for files := tar.NewReader(&archive); ; {
		header, err := files.Next()
		if err != nil {
			return "", fmt.Errorf("export of job %s without model.safetensors: %w", id, err)
		}
		if header.Name != "model.safetensors" {
			continue
		}
		digest := sha256.New()
		if _, err := io.Copy(digest, files); err != nil {
			return "", fmt.Errorf("export of job %s: %w", id, err)
		}
		return hex.EncodeToString(digest.Sum(nil)), nil
	}
}
