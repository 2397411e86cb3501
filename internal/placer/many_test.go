package placer

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"
)

// many are so many nodes of a core, of which the first ones have none free.
func many(count, busy int) (all []Node) {
	for i := range count {
		n := node(fmt.Sprintf("n%03d", i), 1)
		if i < busy {
			n.Cores = nil
		}
		all = append(all, n)
	}
	return all
}

// TestAJobFindsTheFreeNodesAmongMoreBusyOnesThanASearchTakesIn: nodes without room take no part in the search.
func TestAJobFindsTheFreeNodesAmongMoreBusyOnesThanASearchTakesIn(t *testing.T) {
	for _, spread := range []bool{false, true} {
		j := Job{Devices: []int{0, 1, 2, 3}, Threads: 1, Spread: spread}
		p, err := Place(j, many(maxNodes+6, maxNodes+2), nil)
		if err != nil {
			t.Fatalf("spread %v: %v", spread, err)
		}
		if got := strings.Join(p.Nodes, " "); got != "n066 n067 n068 n069" {
			t.Errorf("spread %v: it is on %s", spread, got)
		}
	}
}

// TestAJobOfMoreNodesThanASearchFollowsHasRoom: the search among all ways takes in all nodes.
func TestAJobOfMoreNodesThanASearchFollowsHasRoom(t *testing.T) {
	j := Job{Threads: 1}
	for i := range maxNodes + 10 {
		j.Devices = append(j.Devices, i)
	}
	p, err := Place(j, many(maxNodes+10, 0), nil)
	if err != nil || len(p.Nodes) != maxNodes+10 {
		t.Errorf("it is on %d nodes: %v", len(p.Nodes), err)
	}
	if _, err := Place(j, many(maxNodes+9, 0), nil); err == nil {
		t.Error("it has room on one node less")
	}
}

// TestWhatManyNodesLackIsSaidOnce: a reason that named each of 200 nodes for each of 200 jobs would be a megabyte.
func TestWhatManyNodesLackIsSaidOnce(t *testing.T) {
	nodes := many(200, 198)
	nodes[199].Excluded, nodes[150].Excluded = "node n199 is being drained", "node n150 is being drained"
	_, err := Place(Job{Devices: []int{0, 1}, Threads: 1}, nodes, nil)
	if want := "n000 and 196 others: 0 of 1 cores free; n198: 1 of 1 cores free; node n150"; err == nil || !strings.HasPrefix(err.Error(), want[:len(want)-9]) {
		t.Errorf("%v; want %s", err, want)
	}
	if want := "n150: node n150 is being drained (and 1 other that may have no stage)"; err == nil || !strings.HasSuffix(err.Error(), want) {
		t.Errorf("%v; want %s at the end", err, want)
	}
}

// TestOrderOfManyJobsThatWaitIsAsOfFew: they are told what is lacking, and the first is what the others wait behind.
func TestOrderOfManyJobsThatWaitIsAsOfFew(t *testing.T) {
	var waiting []Waiting
	for i := range 200 {
		waiting = append(waiting, Waiting{ID: strconv.Itoa(i + 1), Want: Job{Devices: []int{0, 1, 2, 3}, Threads: 1, Spread: true}})
	}
	for i, v := range Order(time.Now(), many(200, 197), nil, waiting) {
		if v.Start || v.Never || v.Lacks != "n000 and 196 others: 0 of 1 cores free; n197 and 2 others: 1 of 1 cores free" || (v.Behind == "") != (i == 0) {
			t.Fatalf("job %s: %+v", waiting[v.Index].ID, v)
		}
	}
}

func BenchmarkOrderOfManyJobsThatWait(b *testing.B) {
	now := time.Now()
	var waiting []Waiting
	for i := range 200 {
		waiting = append(waiting, Waiting{ID: strconv.Itoa(i + 1), Want: Job{Devices: []int{0, 1, 2, 3}, Threads: 1, Spread: true}})
	}
	nodes := many(205, 205)
	for name, ends := range map[string]bool{"whose end nobody knows": false, "behind jobs that will end": true} {
		var holders []Holder
		for i := range 50 {
			h := Holder{ID: strconv.Itoa(1000 + i), Held: map[string]Held{}}
			for k := range 4 {
				h.Held[nodes[4*i+k].Name] = Held{Cores: []int{0}}
			}
			if ends {
				h.Ends = now.Add(time.Duration(i+1) * time.Hour)
			}
			holders = append(holders, h)
		}
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				Order(now, nodes, holders, waiting)
			}
		})
	}
}
