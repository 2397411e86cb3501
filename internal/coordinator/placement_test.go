package coordinator

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/internal/cluster"
	"github.com/avgpipe/avgpipe/internal/gpu"
	"github.com/avgpipe/avgpipe/internal/placer"
	"github.com/avgpipe/avgpipe/internal/spec"
	"github.com/avgpipe/avgpipe/job"
)

// placeStages places stages on nodes of which nobody else has anything.
func placeStages(devices []int, threads int, gpus job.GPU, nodes []Node, free map[string]resources) placement {
	var rooms []placer.Node
	for _, n := range nodes {
		r := free[n.Name]
		rooms = append(rooms, placer.Node{Name: n.Name, Cores: r.cores, GPUs: r.gpus, All: placer.Capacity{Cores: len(r.cores), GPUs: len(r.gpus)}})
	}
	want := placer.Job{Devices: devices, Threads: threads, GPUs: int(gpus.Count)}.Fitted(rooms)
	p, err := placer.Place(want, rooms, nil)
	if err != nil {
		return nil
	}
	return taken(want, p)
}

func TestAPlacementIsAListOfStages(t *testing.T) {
	s := &spec.Spec{}
	s.Job.Stages, s.Job.Chunks, s.Job.MicroBatches, s.Job.Schedule = 2, 2, 4, "interleaved"
	here := []Node{{Name: "a"}}
	text, err := json.Marshal(placeStages(s.Placement(), 2, job.GPU{}, here, map[string]resources{"a": {cores: []int{4, 5, 6, 7}}}))
	if err != nil {
		t.Fatal(err)
	}
	want := `[{"stage":0,"node":"a","device":0,"cores":[4,5]},{"stage":1,"node":"a","device":1,"cores":[6,7]},` +
		`{"stage":2,"node":"a","device":0,"cores":[4,5]},{"stage":3,"node":"a","device":1,"cores":[6,7]}]`
	if string(text) != want {
		t.Errorf("placed %s, want %s", text, want)
	}
	for placed, cores := range map[string][]int{
		want:                                     {4, 5, 6, 7},
		`[{"stage":0,"node":"b","cores":[1,0]}]`: nil,
		`[{"stage":0,"node":"a"}]`:               nil,
		``:                                       nil,
	} {
		if got := placementOf(&cluster.Job{Placement: json.RawMessage(placed)}).cores("a"); !slices.Equal(got, cores) {
			t.Errorf("%s: cores %v, want %v", placed, got, cores)
		}
	}
	if p := placementOf(&cluster.Job{ID: "1", Placement: json.RawMessage(`[{"stage":0,"node":"a"},{"stage":`)}); p != nil {
		t.Errorf("a damaged placement was read as %+v", p)
	}
}

// TestStagesArePlacedWhereCoresAreFree: on one node where that has enough for all, else on several; and on the first, without cores of their
// own, where a device finds none.
func TestStagesArePlacedWhereCoresAreFree(t *testing.T) {
	nodes := []Node{{Name: "a"}, {Name: "b"}}
	for _, c := range []struct {
		free map[string][]int
		want string
	}{
		{map[string][]int{"a": {0, 1, 2, 3}, "b": {0, 1, 2, 3, 4, 5}}, "b/0 [0 1], b/1 [2 3], b/2 [4 5]"},
		{map[string][]int{"a": {4, 5, 6}, "b": {0, 1, 2, 3}}, "b/0 [0 1], b/1 [2 3], a/0 [4 5]"},
		{map[string][]int{"a": {0, 1, 2}, "b": {0, 1, 2}}, "a/0 [], a/1 [], a/2 []"},
		{map[string][]int{}, "a/0 [], a/1 [], a/2 []"},
	} {
		var got []string
		free := map[string]resources{}
		for node, cores := range c.free {
			free[node] = resources{cores: cores}
		}
		for k, at := range placeStages([]int{0, 1, 2}, 2, job.GPU{}, nodes, free) {
			if at.Stage != k {
				t.Errorf("stage %d is in the place of stage %d", at.Stage, k)
			}
			got = append(got, fmt.Sprintf("%s/%d %v", at.Node, at.Device, at.Cores))
		}
		if text := strings.Join(got, ", "); text != c.want {
			t.Errorf("of %v: %s, want %s", c.free, text, c.want)
		}
	}
}

func TestAJobOnASickGPUIsKnown(t *testing.T) {
	well, ill := gpu.GPU{UUID: "GPU-a", Health: gpu.Health{Level: gpu.Degraded}}, gpu.GPU{
		Index: 1, UUID: "GPU-b", Name: "A100", Health: gpu.Health{Level: gpu.Sick, Reasons: []gpu.Reason{{Code: "xid_79", Text: "XID 79"}}},
	}
	nodes := []Node{{Name: "a", GPUs: func() []gpu.GPU { return []gpu.GPU{well, ill} }}, {Name: "b"}}
	c := &Coordinator{config: Config{Nodes: func() []Node { return nodes }}}
	c.lookAround()
	for uuid, want := range map[string]string{"GPU-a": "", "GPU-b": "GPU 1 (A100, GPU-b) is sick: XID 79", "": ""} {
		if got := c.sick(placement{{Node: "a", GPU: uuid}, {Node: "b", GPU: "GPU-b"}}); got != want {
			t.Errorf("a job on %q is %q, want %q", uuid, got, want)
		}
	}
	if all := c.all()["a"].gpus; len(all) != 1 || all[0] != "GPU-a" {
		t.Errorf("jobs may get %v", all)
	}
}
