package placer

import "testing"

// TestAJobIsNotSqueezedOntoANodeBecauseOthersLackItsFiles: it waits for those, though it could have one node as a whole.
func TestAJobIsNotSqueezedOntoANodeBecauseOthersLackItsFiles(t *testing.T) {
	nodes := []Node{node("a", 1), node("b", 2)}
	j := Job{Devices: []int{0, 1, 2}, Threads: 1, Lacking: map[string]string{"b": "no data"}}
	if got, ok := j.fitted(idle(nodes)); ok || got.Whole != "" {
		t.Errorf("without the data it takes %q as a whole (%v)", got.Whole, ok)
	}
	if j.Lacking = nil; !Fits(j, nodes) {
		t.Error("with the data it has no room")
	}
}

// TestAJobIsNotSqueezedOntoANodeBeforeOthersAreKnown: they may have what it asks for.
func TestAJobIsNotSqueezedOntoANodeBeforeOthersAreKnown(t *testing.T) {
	j := Job{Devices: []int{0, 1, 2}, Threads: 1}
	nodes := []Node{node("a", 1), {Name: "b", Excluded: "it was not asked yet", Unknown: true}}
	if got, ok := j.fitted(nodes); ok || got.Whole != "" {
		t.Errorf("beside a node that nobody knows it takes %q as a whole (%v)", got.Whole, ok)
	}
	nodes[1].Unknown = false
	if got, ok := j.fitted(nodes); !ok || got.Whole != "a" {
		t.Errorf("beside one that has nothing it takes %q as a whole (%v)", got.Whole, ok)
	}
}
