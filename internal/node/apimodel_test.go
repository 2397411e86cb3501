package node_test

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/avgpipe/avgpipe/internal/api"
)

// request is what a client asks of a job, whose name is the key that it was submitted with.
type request struct{ job, kind string } // submit, cancel, resume, read

// reply is what the client was told.
type reply struct {
	unknown bool // nothing: it may have happened, may happen later, or never
	away    bool // and it did not: nobody was asked
	absent  bool // there is no such job
	refused bool // the job's state does not allow it
	twice   bool // there are several of the name
	id      string
	state   api.State     // of a read
	age     time.Duration // that the answer says it has; 0: it says none
}

// phase is how far the model is with a job.
type phase string

const (
	none       phase = "none"
	live       phase = "live"
	cancelling phase = "cancelling" // it becomes cancelled by itself, at some time
	cancelled  phase = "cancelled"
)

// standing is what the model knows of a job. The id is empty until a client was told it.
type standing struct {
	id    string
	phase phase
}

// next is where a job stands after a request, and what is answered.
func (s standing) next(kind string) (standing, reply) {
	r := reply{id: s.id, absent: s.phase == none}
	switch {
	case kind == "submit" && s.phase == none:
		s.phase, r.absent = live, false
	case kind == "cancel" && s.phase == live:
		s.phase = cancelling
	case kind == "cancel":
		r.refused = s.phase == cancelled
	case kind == "resume" && s.phase == cancelled:
		s.phase = live
	case kind == "resume":
		r.refused = s.phase != none
	}
	return s, r
}

// agrees reports whether a client may be told o where the model answers r, and with which id of the job.
func (s standing) agrees(kind string, r, o reply) (id string, ok bool) {
	if o.twice || o.absent != r.absent || o.refused != r.refused || s.id != "" && o.id != "" && o.id != s.id {
		return "", false
	}
	if kind == "read" && !o.absent && (o.state == api.Cancelled) != (s.phase == cancelled) {
		return "", false
	}
	return max(s.id, o.id), true // one of them is empty, or they are equal
}

// apiModel is a job as one that a single process keeps: what a history is held against.
var apiModel = porcupine.NondeterministicModel{
	Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
		byJob := map[string][]porcupine.Operation{}
		for _, o := range history {
			job := o.Input.(request).job //nolint:forcetypeassert // of this file
			byJob[job] = append(byJob[job], o)
		}
		var parts [][]porcupine.Operation
		for _, part := range byJob {
			parts = append(parts, part)
		}
		return parts
	},
	Init: func() []any { return []any{standing{phase: none}} },
	Step: func(state, in, out any) (all []any) {
		s, q, o := state.(standing), in.(request), out.(reply) //nolint:forcetypeassert // of this file
		before := []standing{s}
		if s.phase == cancelling {
			before = append(before, standing{s.id, cancelled})
		}
		for _, s := range before {
			after, r := s.next(q.kind)
			if o.unknown {
				all = append(all, after)
			} else if id, ok := s.agrees(q.kind, r, o); ok {
				after.id = id
				all = append(all, after)
			}
		}
		return all
	},
}

// ofList has a list of jobs as a read of each of these.
func ofList(names []string, jobs []api.JobStatus, failed reply) (all map[string]reply) {
	all = map[string]reply{}
	for _, name := range names {
		r := failed
		r.absent = true
		for _, j := range jobs {
			if j.Name == name {
				r.twice, r.absent, r.id, r.state = !r.absent, false, j.ID, j.State
			}
		}
		all[name] = r
	}
	return all
}

// old lets an answer that says its age be of any time since then. Ages are given in milliseconds.
func old(o porcupine.Operation) porcupine.Operation {
	if r := o.Output.(reply); r.age > 0 { //nolint:forcetypeassert // of this file
		o.Call -= int64(r.age + time.Millisecond)
	}
	return o
}

// checkBound ends a search for an order that hangs: far more than any takes, on a busy machine too.
const checkBound = 5 * time.Minute

// checkHistory fails the test unless some order of the operations explains what every client was told.
func checkHistory(t *testing.T, history []porcupine.Operation) {
	t.Helper()
	aged := make([]porcupine.Operation, len(history))
	for i, o := range history {
		aged[i] = old(o)
	}
	model := apiModel.ToModel()
	for _, part := range apiModel.Partition(aged) {
		part = withoutImplied(part)
		if got, info := porcupine.CheckOperationsVerbose(model, part, checkBound); got != porcupine.Ok {
			t.Errorf("the %d operations on a job are not known to be linearizable: %s:\n%s", len(part), got, stuck(part, info))
		}
	}
}

// withoutImplied leaves out the reads that may have been at the same time as another one of the same answer, whenever that was, and of the submissions whose outcome is not known all but the
// one that began first: it may have made the job whenever one of the others may have, and those do nothing then. The orders that there are double with each operation that is under way for long.
func withoutImplied(part []porcupine.Operation) (rest []porcupine.Operation) {
	var lost *porcupine.Operation // the first submission whose outcome is not known
	for _, o := range part {
		if lostSubmission(o) && (lost == nil || o.Call < lost.Call) {
			lost = &o
		}
	}
	for i, o := range part {
		if lostSubmission(o) && o.Call > lost.Call {
			continue
		}
		implied := func(by porcupine.Operation) bool {
			a, b := o.Output.(reply), by.Output.(reply) //nolint:forcetypeassert // of this file
			a.age, b.age = 0, 0
			return a == b && by.Input == o.Input && o.Call <= by.Call && by.Return <= o.Return
		}
		if o.Input.(request).kind != "read" || !slices.ContainsFunc(part[i+1:], implied) && !slices.ContainsFunc(rest, implied) { //nolint:forcetypeassert // of this file
			rest = append(rest, o)
		}
	}
	return rest
}

// lostSubmission reports whether an operation is a submission whose outcome is not known.
func lostSubmission(o porcupine.Operation) bool {
	return o.Input.(request).kind == "submit" && o.Output.(reply).unknown //nolint:forcetypeassert // of this file
}

// stuck says how far operations can be put in an order, and which come next.
func stuck(part []porcupine.Operation, info porcupine.LinearizationInfo) string {
	var longest []porcupine.Operation
	for _, way := range info.PartialLinearizationsOperations()[0] {
		if len(way) > len(longest) {
			longest = way
		}
	}
	rest := slices.DeleteFunc(slices.Clone(part), func(o porcupine.Operation) bool { return slices.Contains(longest, o) })
	slices.SortFunc(rest, func(a, b porcupine.Operation) int { return cmp.Compare(a.Return, b.Return) })
	return "in an order that is possible\n" + describe(longest[max(0, len(longest)-10):]) + "and then\n" + describe(rest[:min(len(rest), 8)])
}

// describe has a line for each operation.
func describe(all []porcupine.Operation) string {
	var out strings.Builder
	for _, o := range all {
		until := "never"
		if o.Return < math.MaxInt64 {
			until = time.Duration(o.Return).String()
		}
		fmt.Fprintf(&out, "  client %d, from %s to %s: %v: %+v\n", o.ClientId, time.Duration(o.Call), until, o.Input, o.Output)
	}
	return out.String()
}

// TestTheModelOfTheAPIFindsWrongHistories.
func TestTheModelOfTheAPIFindsWrongHistories(t *testing.T) {
	t.Parallel()
	at := time.Duration(0)
	do := func(kind string, r reply) porcupine.Operation {
		at += 10 * time.Millisecond
		return porcupine.Operation{Input: request{"a", kind}, Output: r, Call: int64(at), Return: int64(at + 5*time.Millisecond)}
	}
	lost := func(kind string) porcupine.Operation {
		o := do(kind, reply{unknown: true})
		o.Return = math.MaxInt64
		return o
	}
	read := func(state api.State) porcupine.Operation { return do("read", reply{id: "1", state: state}) }
	ok, no := reply{id: "1"}, reply{refused: true}
	type history = []porcupine.Operation
	for name, c := range map[string]struct {
		history history
		want    bool
	}{
		"a job's life":                          {history{do("read", reply{absent: true}), do("submit", ok), read(api.Queued), do("cancel", ok), read(api.Queued), read(api.Cancelled), do("resume", ok), read(api.Queued)}, true},
		"a submission that was lost":            {history{do("submit", ok), do("read", reply{absent: true})}, false},
		"one key, two jobs":                     {history{do("submit", ok), do("submit", reply{id: "2"})}, false},
		"one key, the same job":                 {history{do("submit", ok), do("submit", ok)}, true},
		"two jobs in the list":                  {history{do("submit", ok), do("read", ofList([]string{"a"}, []api.JobStatus{{Name: "a", ID: "1"}, {Name: "a", ID: "2"}}, reply{})["a"])}, false},
		"unknown, and it happened":              {history{lost("submit"), do("submit", ok), read(api.Queued)}, true},
		"unknown twice, and it happened":        {history{lost("submit"), do("read", reply{absent: true}), lost("submit"), read(api.Queued), do("cancel", ok), lost("submit"), read(api.Cancelled)}, true},
		"unknown twice, and a job vanishes":     {history{lost("submit"), lost("submit"), read(api.Queued), do("read", reply{absent: true}), lost("submit")}, false},
		"unknown, and it did not yet":           {history{lost("submit"), do("read", reply{absent: true}), read(api.Queued)}, true},
		"unknown, and a job vanishes":           {history{lost("submit"), read(api.Queued), do("read", reply{absent: true})}, false},
		"an old read that does not say so":      {history{do("submit", ok), do("cancel", ok), read(api.Cancelled), read(api.Queued)}, false},
		"an old read that says so":              {history{do("submit", ok), do("cancel", ok), read(api.Cancelled), old(do("read", reply{id: "1", state: api.Queued, age: 20 * time.Millisecond}))}, true},
		"an old read that says too little":      {history{do("submit", ok), do("cancel", ok), read(api.Cancelled), old(do("read", reply{id: "1", state: api.Queued, age: time.Millisecond}))}, false},
		"a cancellation that was lost":          {history{do("submit", ok), do("cancel", ok), do("resume", ok), do("resume", ok)}, false},
		"two clients that both resume it":       {history{do("submit", ok), do("cancel", ok), read(api.Cancelled), do("resume", ok), do("resume", ok)}, false},
		"a resumption that undoes":              {history{do("submit", ok), do("cancel", ok), read(api.Queued), do("resume", no), read(api.Cancelled), do("resume", ok), do("cancel", no)}, false},
		"a cancellation of one that has ended":  {history{do("submit", ok), do("cancel", ok), read(api.Cancelled), do("cancel", ok)}, false},
		"unknown, and it was resumed":           {history{do("submit", ok), do("cancel", ok), read(api.Cancelled), lost("resume"), read(api.Cancelled), read(api.Queued)}, true},
		"unknown, and it was resumed by nobody": {history{do("submit", ok), do("cancel", ok), lost("cancel"), read(api.Cancelled), read(api.Queued)}, false},
	} {
		for what, history := range map[string]history{"": c.history, ", without what is implied": withoutImplied(c.history)} {
			if got := porcupine.CheckOperations(apiModel.ToModel(), history); got != c.want {
				t.Errorf("%s%s: %v, expected %v", name, what, got, c.want)
			}
		}
	}
}
