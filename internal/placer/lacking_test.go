package placer

import "testing"

// TestAJobIsNotSqueezedOntoANodeBecauseOthersLackItsFiles: it waits for those, though it could have one node as a whole.
func TestAJobIsNotSqueezedOntoANodeBecauseOthersLackItsFiles(t *testing.T) {
	nodes := []Node{node("a", 1), node("b", 2)}
	j := Job{Devices: []int{0, 1, 2}, Threads: 1, Lacking: map[string]string{"b": "no data"}}
	if got, ok := j.fitted(nodes); ok || got.Whole != "" {
		t.Errorf("without the data it takes %q as a whole (%v)", got.Whole, ok)
	}
	if j.Lacking = nil; !Fits(j, nodes) {
		t.Error("with the data it has no room")
	}
}
