package agenttest

import (
	"context"
	"slices"
	"testing"

	"github.com/avgpipe/avgpipe/internal/agent"
	"github.com/avgpipe/avgpipe/internal/spec"
)

// Absent is a file of data, or a model, that no host of a test has.
const Absent = "/absent"

// look is agent.Config.Look of agents that Open opens.
func look(_ context.Context, s *spec.Spec) (out agent.Sight, err error) {
	if slices.Contains(s.Job.Data.Files, Absent) {
		out.Data = "data.files: there is no " + Absent
	}
	if s.Job.Model.From == Absent {
		out.Model = "model.from: there is no " + Absent
	}
	return out, nil
}

func testLook(t *testing.T, r Rig) {
	a := Assignment("1", "good", 1, 10)
	s := &a.Spec
	if found, err := r.Agent.Look(t.Context(), s); err != nil || found != (agent.Sight{}) {
		t.Errorf("a job that has everything lacks %+v (%v)", found, err)
	}
	s.Job.Data.Files, s.Job.Model.From = []string{Absent}, Absent
	if found, err := r.Agent.Look(t.Context(), s); err != nil || found.Data != "data.files: there is no /absent" || found.Model != "model.from: there is no /absent" {
		t.Errorf("a job that has nothing lacks %+v (%v)", found, err)
	}
}
