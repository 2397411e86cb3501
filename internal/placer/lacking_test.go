package placer

import "testing"

// TestAJobIsNotSqueezedOntoANodeBecauseOthersLackItsFiles: it waits for those, though it could have one node as a whole.
func TestAJobIsNotSqueezedOntoANodeBecauseOthersLackItsFiles(t *testing.T) {
	nodes := []Node{node("a", 1), node("b", 2)}
	for name, lack := range map[string]Lack{"the data": {Data: "no data"}, "the model": {Model: "no model"}} {
		j := Job{Devices: []int{0, 1, 2}, Threads: 1, Lacking: map[string]Lack{"b": lack}}
		if got, ok := j.fitted(nodes); ok || got.Whole != "" {
			t.Errorf("without %s it takes %q as a whole (%v)", name, got.Whole, ok)
		}
		if j.Lacking = nil; !Fits(j, nodes) {
			t.Errorf("with %s it has no room", name)
		}
	}
}
