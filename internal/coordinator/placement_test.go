package coordinator

import (
	"encoding/json"
	"slices"
	"testing"

	"github.com/avgpipe/avgpipe/internal/cluster"
	"github.com/avgpipe/avgpipe/internal/spec"
)

func TestAPlacementIsAListOfStages(t *testing.T) {
	s := &spec.Spec{}
	s.Job.Stages, s.Job.Chunks, s.Job.MicroBatches, s.Job.Schedule, s.Job.Devices.CPU.Threads = 2, 2, 4, "interleaved", 2
	text, err := json.Marshal(placeOn("a", s, []int{4, 5, 6, 7}))
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
		p, err := readPlacement(&cluster.Job{Placement: json.RawMessage(placed)})
		if got := p.cores("a"); err != nil || !slices.Equal(got, cores) {
			t.Errorf("%s: cores %v, %v; want %v", placed, got, err, cores)
		}
	}
	if _, err := readPlacement(&cluster.Job{ID: "1", Placement: json.RawMessage(`[{"stage":`)}); err == nil {
		t.Error("a damaged placement was read")
	}
}
