package raftlog

import (
	"math"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
)

// input is one operation on a job that a client asks for.
type input struct {
	job        string
	kind       string // begin_generation, begin_commit, abort_commit, commit_round, read
	generation uint64
	round      uint64 // of begin_generation: that it starts from
}

// output is what the client was told.
type output struct {
	unknown bool // nothing: it may have happened, may happen later, or never
	refused bool
	now     standing // of a read
}

// standing is what the model knows of a job.
type standing struct{ generation, pending, committed uint64 }

// next is where the job stands after an operation, and whether the operation is refused.
func (s standing) next(in input) (standing, bool) {
	if in.kind == "read" {
		return s, false
	}
	refused := in.generation != s.generation
	switch in.kind {
	case "begin_generation":
		refused = refused || in.round != s.committed
		s.generation, s.pending = s.generation+1, 0
	case "begin_commit":
		refused = refused || in.round <= max(s.pending, s.committed)
		s.pending = in.round
	case "abort_commit":
		refused = refused || in.round != s.pending
		s.pending = 0
	case "commit_round":
		refused = refused || in.round != s.pending || in.round <= s.committed
		s.pending, s.committed = 0, in.round
	}
	return s, refused
}

// jobModel is the replicated state of one job as one that nobody else shares: what a history is held against.
var jobModel = porcupine.Model{
	Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
		byJob := map[string][]porcupine.Operation{}
		for _, o := range history {
			job := o.Input.(input).job //nolint:forcetypeassert // of this file
			byJob[job] = append(byJob[job], o)
		}
		var parts [][]porcupine.Operation
		for _, part := range byJob {
			parts = append(parts, part)
		}
		return parts
	},
	Init: func() any { return standing{} },
	Step: func(state, in, out any) (bool, any) {
		s, i, o := state.(standing), in.(input), out.(output) //nolint:forcetypeassert // of this file
		after, refused := s.next(i)
		if refused {
			after = s
		}
		switch {
		case o.unknown:
			return true, after
		case i.kind == "read":
			return o.now == s, s
		default:
			return o.refused == refused, after
		}
	},
}

// checkHistory fails the test unless some order of the operations explains what every client was told.
func checkHistory(t *testing.T, history []porcupine.Operation) {
	t.Helper()
	if got := porcupine.CheckOperationsTimeout(jobModel, history, 5*time.Minute); got != porcupine.Ok {
		t.Errorf("%d operations are not known to be linearizable: %s", len(history), got)
	}
}

// TestModelFindsWrongHistories.
func TestModelFindsWrongHistories(t *testing.T) {
	begin := porcupine.Operation{Input: input{"1", "begin_generation", 0, 0}, Output: output{}, Call: 1, Return: 2}
	commit := porcupine.Operation{Input: input{"1", "begin_commit", 1, 5}, Output: output{}, Call: 3, Return: 4}
	read := func(s standing) porcupine.Operation {
		return porcupine.Operation{Input: input{job: "1", kind: "read"}, Output: output{now: s}, Call: 5, Return: 6}
	}
	lost := commit
	lost.Output, lost.Return = output{unknown: true}, math.MaxInt64
	twice := commit
	twice.Call, twice.Return = 7, 8
	for name, c := range map[string]struct {
		history []porcupine.Operation
		want    bool
	}{
		"as it was":                      {[]porcupine.Operation{begin, commit, read(standing{1, 5, 0})}, true},
		"a command that was lost":        {[]porcupine.Operation{begin, commit, read(standing{1, 0, 0})}, false},
		"an old read":                    {[]porcupine.Operation{begin, read(standing{})}, false},
		"unknown, and it happened":       {[]porcupine.Operation{begin, lost, read(standing{1, 5, 0})}, true},
		"unknown, and it did not":        {[]porcupine.Operation{begin, lost, read(standing{1, 0, 0})}, true},
		"a round that was begun twice":   {[]porcupine.Operation{begin, commit, twice}, false},
		"two nodes that both granted it": {[]porcupine.Operation{begin, begin}, false},
	} {
		if got := porcupine.CheckOperations(jobModel, c.history); got != c.want {
			t.Errorf("%s: %v, expected %v", name, got, c.want)
		}
	}
}
