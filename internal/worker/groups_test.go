package worker

import (
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/avgpipe/avgpipe/internal/cluster"
	"github.com/avgpipe/avgpipe/internal/shard"
	"github.com/avgpipe/avgpipe/internal/worker/control"
	"github.com/avgpipe/avgpipe/job"
)

// assignGroups lays an assignment over the nodes: stage k of group g on node on[g][k].
func (h *hosts) assignGroups(t *testing.T, a control.Assignment, on [][]int) []control.Assignment {
	t.Helper()
	a.Spec.Job.Groups = len(on)
	all := h.assign(t, a, slices.Concat(on...))
	for i := range all {
		places := all[i].Stages
		all[i].Groups = nil
		for g, nodes := range on {
			all[i].Groups = append(all[i].Groups, places[:len(nodes)])
			places = places[len(nodes):]
			if slices.Contains(nodes, i) {
				all[i].Group, all[i].Stages = g, all[i].Groups[g]
			}
		}
	}
	return all
}

// roundOf is the round that workers of all nodes have left, with every shard in the directory of every node.
func roundOf(t *testing.T, all []control.Assignment, got []outcome, groups int) *cluster.Manifest {
	t.Helper()
	byPlace := map[[2]int]control.ShardInfo{}
	for i, o := range got {
		if o.err != nil && len(o.shards) == 0 {
			t.Fatalf("node %d ended with %v", i, o.err)
		}
		for k, s := range o.shards {
			byPlace[[2]int{s.Group, k}] = s
			for j := range all {
				if j != i {
					copyShard(t, all[i], all[j], shard.Digest(s.Digest))
				}
			}
		}
	}
	stages := len(byPlace) / groups
	m := &cluster.Manifest{Job: "1", Generation: all[0].Generation, Round: got[0].round, Stages: stages}
	for i := range len(byPlace) {
		s, ok := byPlace[[2]int{i / stages, i % stages}]
		if !ok {
			t.Fatalf("no shard of stage %d of group %d", i%stages, i/stages)
		}
		m.Shards = append(m.Shards, cluster.ShardRef{Stage: s.Stage, Digest: shard.Digest(s.Digest), Bytes: s.Bytes, Nodes: []string{"a"}, Layers: s.Layers})
		m.Cursors, m.SamplesSeen = s.Cursors, s.Meta.SamplesSeen
	}
	if err := m.Validate(); err != nil {
		t.Fatal(err)
	}
	return m
}

// copyShard copies a shard from the directory of one node to that of another.
func copyShard(t *testing.T, from, to control.Assignment, d shard.Digest) {
	t.Helper()
	source, err := shard.OpenStore(control.ShardDir(from.Dir))
	if err != nil {
		t.Fatal(err)
	}
	target, err := shard.OpenStore(control.ShardDir(to.Dir))
	if err != nil {
		t.Fatal(err)
	}
	names, memory := readShard(t, source, d)
	header, err := source.Header(d)
	if err != nil {
		t.Fatal(err)
	}
	header.Vectors = names
	if got, _, err := shard.Write(t.Context(), target, header, memory); err != nil || got != d {
		t.Fatalf("the copy of shard %s is %s: %v", d, got, err)
	}
}

// readShard are the vectors of a shard.
func readShard(t *testing.T, store shard.Store, d shard.Digest) (names []shard.Vector, memory [][]float32) {
	t.Helper()
	err := shard.Read(t.Context(), store, d, func(h *shard.Header) ([][]float32, error) {
		names, memory = h.Vectors, nil
		for _, v := range names {
			memory = append(memory, make([]float32, v.Elements))
		}
		return memory, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return names, memory
}

// compareRound holds each vector of each shard against that of a run in one process.
func compareRound(t *testing.T, a control.Assignment, m *cluster.Manifest, want map[string][]float32) {
	t.Helper()
	store, err := shard.OpenStore(control.ShardDir(a.Dir))
	if err != nil {
		t.Fatal(err)
	}
	for g := range m.Groups() {
		got := map[string][]float32{}
		for _, s := range m.Shards[g*m.Stages : (g+1)*m.Stages] {
			names, memory := readShard(t, store, s.Digest)
			for i, v := range names {
				got[v.Name] = append(got[v.Name], memory[i]...)
			}
		}
		for name, v := range got {
			if !slices.Equal(v, want[name]) {
				t.Errorf("%s of group %d differs from that of one process", name, g)
			}
		}
		per := len(m.Cursors) / m.Groups()
		for p := g * per; p < (g+1)*per; p++ {
			if got[shard.ParametersVector(p)] == nil {
				t.Errorf("group %d does not have pipeline %d", g, p)
			}
		}
	}
}

// TestGroupsOnNodesComputeTheBitsOfOneProcess: the center in every group, and every pipeline, from the start, from a round in the same groups, and from one
// in others.
func TestGroupsOnNodesComputeTheBitsOfOneProcess(t *testing.T) {
	for _, pull := range []string{"predicted", "new", "elastic"} {
		t.Run(pull, func(t *testing.T) {
			t.Parallel()
			change := func(j *job.Job) { j.Averaging.Pull, j.Train.Steps, j.Optimizer.ClipNorm = pull, 64, 0.5 }
			whole := setup(t, 2, 4, change)
			whole.Spec.Budget = whole.Spec.Job.Resolved(0)
			want := vectorsOf(t, whole, train(t, whole, nil))
			a := setup(t, 2, 4, change)
			a.Spec.Job.Data.Files, a.Spec.Budget = whole.Spec.Job.Data.Files, whole.Spec.Budget
			for i, on := range [][][]int{{{0, 0}, {1, 2}}, {{2, 2}, {0, 1}}, {{0, 0}, {1, 1}, {2, 2}, {3, 3}}, {{0, 1}}, {{1, 1}, {0, 0}}} {
				last := i == 4
				h := newHosts(t, "a", "b", "c", "d")
				used := slices.Max(slices.Concat(slices.Concat(on...)))
				h.names = h.names[:used+1]
				all := h.assignGroups(t, a, on)
				if len(on) == 1 {
					for n := range all {
						all[n].Groups = nil
					}
				}
				if a.Restore != nil {
					for n := range all {
						for _, s := range a.Restore.Shards {
							copyShard(t, a, all[n], s.Digest)
						}
					}
				}
				got := trainAll(t, all, stopTogether(len(all), last))
				m := roundOf(t, all, got, len(on))
				if last {
					compareRound(t, all[0], m, want)
				}
				a.Dir, a.Restore, a.Generation = all[0].Dir, m, a.Generation+1
			}
			if a.Restore.Round != 16 {
				t.Errorf("it ended at round %d", a.Restore.Round)
			}
		})
	}
}

// stopTogether has the workers stop two rounds on, once all have started; the first node's first, as a coordinator does. It is for runs of any generation.
func stopTogether(workers int, last bool) func(int, *trainer) {
	if last {
		return nil
	}
	var mu sync.Mutex
	all := make([]*trainer, workers)
	started := 0
	return func(node int, tr *trainer) {
		mu.Lock()
		defer mu.Unlock()
		all[node] = tr
		if started++; started < workers {
			return
		}
		first := slices.IndexFunc(all, func(tr *trainer) bool {
			return tr.assignment.Group == 0 && tr.assignment.Stages[0].Node == tr.assignment.Node
		})
		ask := func(tr *trainer, round uint64) control.CommitResponse {
			return tr.Commit(control.CommitRequest{Generation: tr.assignment.Generation, Round: round, Stop: true})
		}
		round := all[first].Status().NextCommit + 1
		for answer := ask(all[first], round); !answer.Accepted; answer = ask(all[first], round) {
			round = answer.Earliest
		}
		for _, tr := range all {
			if answer := ask(tr, round); !answer.Accepted {
				panic(fmt.Sprintf("a worker of group %d refuses round %d, which the first one has accepted: %+v", tr.assignment.Group, round, answer))
			}
		}
	}
}
