package spec_test

import (
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/internal/spec"
	"github.com/avgpipe/avgpipe/internal/strictyaml"
	"github.com/avgpipe/avgpipe/job"
)

// TestAJobIsJudgedByAllNodes: each stage has to fit a node, and all of them the nodes.
func TestAJobIsJudgedByAllNodes(t *testing.T) {
	t.Parallel()
	j, f := parsed(t, refJob, 1<<40)
	found, problems := spec.Resolve(j, f, nil)
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	first, second := found.Memory[0].Total(), found.Memory[1].Total()
	most := max(first, second)
	resolve := func(stages int, hosts ...spec.Host) strictyaml.Problems {
		at, facts := *j, f
		at.Stages = job.Count(stages)
		facts.MemoryBytes, facts.Hosts = hosts[0].MemoryBytes, hosts
		_, problems := spec.Resolve(&at, facts, nil)
		return problems
	}
	refused := func(problems strictyaml.Problems, words ...string) {
		t.Helper()
		if len(problems) != 1 {
			t.Fatalf("problems %v", problems)
		}
		for _, w := range words {
			if !strings.Contains(problems[0].Message, w) {
				t.Errorf("%q is not in %s", w, problems[0].Message)
			}
		}
	}
	a, b := spec.Host{Name: "a", Cores: 2, MemoryBytes: most}, spec.Host{Name: "b", Cores: 2, MemoryBytes: most}
	refused(resolve(2, a), "this node has")
	if problems := resolve(2, a, b); len(problems) > 0 {
		t.Errorf("each node has room for a stage, and it is refused: %v", problems)
	}
	a.MemoryBytes, b.MemoryBytes = most-1, most-1
	refused(resolve(2, a, b), "the 2 nodes have", "together for jobs (a ")
	a.MemoryBytes, b.MemoryBytes = most+most/2, 1
	refused(resolve(2, a, b), "the 2 nodes have")
	a.MemoryBytes, b.MemoryBytes = first+second-1, first+second-1
	a.Cores, b.Cores = 1, 1
	if problems := resolve(2, a, b); len(problems) > 0 {
		t.Errorf("a core on each node is enough, and it is refused: %v", problems)
	}
	c := spec.Host{Name: "c", Cores: 1, MemoryBytes: 0} // not known
	if problems := resolve(2, a, c); len(problems) > 0 {
		t.Errorf("nobody knows what c has, and it is refused: %v", problems)
	}
}

func TestAJobThatIsTunedIsJudgedByOneNode(t *testing.T) {
	t.Parallel()
	j, f := parsed(t, refJob, 1<<20)
	j.Pipelines, j.Tuning = job.Auto, job.TuneByProfile
	f.Hosts = []spec.Host{{Name: "a", Cores: 2, MemoryBytes: 1 << 20}, {Name: "b", Cores: 2, MemoryBytes: 1 << 40}}
	_, problems := spec.Resolve(j, f, nil)
	if len(problems) == 0 || !strings.Contains(problems[0].Message, "is tuned on one node") {
		t.Errorf("%v", problems)
	}
}

// TestGroupsThatLackCoresAreRefusedForThat: a group of 3 stages takes 2 nodes of 2 cores, which leaves another one no room, with any memory.
func TestGroupsThatLackCoresAreRefusedForThat(t *testing.T) {
	t.Parallel()
	j, f := parsed(t, refJob, 1<<40)
	j.Stages, j.Pipelines, j.Groups = 3, 2, 2
	for _, name := range []string{"a", "b", "c"} {
		f.Hosts = append(f.Hosts, spec.Host{Name: name, Cores: 2, MemoryBytes: 1 << 40})
	}
	_, problems := spec.Resolve(j, f, nil)
	if len(problems) != 1 || problems[0].Key != "groups" || problems[0].Nearest != "stages: 2" ||
		!strings.Contains(problems[0].Message, "find no cores on the 3 nodes (cores: a 2, b 2, c 2); stages: 2 or groups: 1 would fit") {
		t.Fatalf("%v", problems)
	}
	for _, fits := range []func(){func() { j.Stages, j.Groups = 2, 2 }, func() { j.Stages, j.Groups = 3, 1 }} {
		fits()
		if _, problems := spec.Resolve(j, f, nil); len(problems) > 0 {
			t.Errorf("%d stages in %d groups: %v", j.Stages, j.Groups, problems)
		}
	}
}
