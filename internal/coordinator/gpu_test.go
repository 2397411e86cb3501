package coordinator

import (
	"fmt"
	"slices"
	"strings"
	"testing"

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
