package coordinator

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/avgpipe/avgpipe/internal/cluster"
	"github.com/avgpipe/avgpipe/internal/spec"
	"github.com/avgpipe/avgpipe/job"
)

// TestDevicesArePlacedOnGPUs of one node, of which neighbours share one where there are fewer; and nowhere, where no node has enough.
func TestDevicesArePlacedOnGPUs(t *testing.T) {
	nodes := []Node{{Name: "a"}, {Name: "b"}}
	for _, c := range []struct {
		count int
		free  map[string]resources
		want  string
	}{
		{2, map[string]resources{"a": {[]int{0, 1, 2}, []string{"x"}}, "b": {[]int{4, 5, 6}, []string{"y", "z"}}}, "b[4]y b[5]y b[6]z"},
		{1, map[string]resources{"a": {[]int{0}, []string{"x"}}, "b": {}}, "a[]x a[]x a[]x"},
		{2, map[string]resources{"a": {[]int{0, 1, 2}, []string{"x"}}, "b": {}}, ""},
	} {
		p := placeStages([]int{0, 1, 2}, 1, job.GPU{Count: job.Count(c.count)}, nodes, c.free)
		var got []string
		for _, at := range p {
			got = append(got, fmt.Sprint(at.Node, at.Cores, at.GPU))
		}
		if text := strings.Join(got, " "); text != c.want {
			t.Errorf("%d of %v: %s, want %s", c.count, c.free, text, c.want)
		}
		left := without(c.free, p)
		for _, at := range p {
			if slices.Contains(left[at.Node].gpus, at.GPU) || !p.within(c.free) || p.within(left) {
				t.Errorf("%v leaves %v", p, left)
			}
		}
	}
}

// TestAJobWaitsForGPUs that other jobs have, and one that ran for those that are sick.
func TestAJobWaitsForGPUs(t *testing.T) {
	queued := func() *observed {
		return &observed{Job: &cluster.Job{ID: "1", State: cluster.Queued}, spec: &spec.Spec{}, cores: 1, gpus: 2, generation: newGeneration()}
	}
	w := snapshot{now: time.Unix(1000, 0), cores: 4, gpus: 2, freeGPUs: 1, jobs: []*observed{queued(), queued()}}
	w.jobs[0].spec.Job.Pipelines, w.jobs[0].spec.Job.Stages, w.jobs[0].spec.Job.MicroBatches = 1, 1, 1
	all := decide(w)
	if want := "queued: needs 2 GPUs, 1 of the 2 that are not sick are free"; all[0].choice != wait || all[0].reason != want || all[1].reason != "queued behind job 1" {
		t.Errorf("decided %+v, want %q", all, want)
	}
	if w.freeGPUs = 2; decide(w)[0].choice == wait {
		t.Errorf("decided %+v with 2 free GPUs", decide(w)[0])
	}
}
