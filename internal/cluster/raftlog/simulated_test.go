package raftlog

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/hashicorp/raft"

	"github.com/avgpipe/avgpipe/internal/cluster"
	"github.com/avgpipe/avgpipe/internal/shard"
)

// make test-cluster sets these.
var (
	simulated = flag.Duration("simulated", time.Minute, "how long each simulated cluster lives, in its own time")
	firstSeed = flag.Uint64("seed", 1, "of the first simulated cluster")
	clusters  = flag.Uint64("clusters", 1, "how many clusters of each size are simulated")
)

const simulatedJobs = 6

// world is a cluster in simulated time, whose network breaks and whose nodes crash.
type world struct {
	t       *testing.T
	dir     string
	names   []string
	voters  []raft.Server
	random  *rand.Rand // of the faults
	clock   atomic.Int64
	leaders map[uint64]string // by term

	mu         sync.Mutex
	side       map[string]int // nodes of one side reach each other
	logs       map[string]*Log
	transports map[string]*raft.InmemTransport
	history    []porcupine.Operation
}

func newWorld(t *testing.T, seed uint64, nodes int) *world {
	w := &world{
		t: t, dir: t.TempDir(), random: rand.New(rand.NewPCG(seed, 0)), leaders: map[uint64]string{}, side: map[string]int{},
		logs: map[string]*Log{}, transports: map[string]*raft.InmemTransport{},
	}
	for i := range nodes {
		name := fmt.Sprintf("n%d", i)
		w.names = append(w.names, name)
		w.voters = append(w.voters, raft.Server{ID: raft.ServerID(name), Address: raft.ServerAddress(name)})
	}
	for _, name := range w.names {
		w.start(name)
	}
	return w
}

// wire connects the nodes of one side, and no others.
func (w *world) wire() {
	for a, from := range w.transports {
		for b, to := range w.transports {
			switch {
			case a == b:
			case w.side[a] == w.side[b]:
				from.Connect(raft.ServerAddress(b), to)
			default:
				from.Disconnect(raft.ServerAddress(b))
			}
		}
	}
}

// start opens a node's log.
func (w *world) start(name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	_, transport := raft.NewInmemTransport(raft.ServerAddress(name))
	w.transports[name] = transport
	w.wire()
	l, err := Open(Config{
		Dir: filepath.Join(w.dir, name), NodeID: name, Transport: transport, Voters: w.voters, SnapshotThreshold: 16,
	})
	if err != nil {
		w.t.Fatal(err)
	}
	w.logs[name] = l
}

// crash takes a node from the network and closes its log. Whoever waits for it learns nothing of what became of the command.
func (w *world) crash(name string) {
	w.mu.Lock()
	l := w.logs[name]
	delete(w.logs, name)
	for other, transport := range w.transports {
		transport.Disconnect(raft.ServerAddress(name))
		w.transports[name].Disconnect(raft.ServerAddress(other))
	}
	delete(w.transports, name)
	w.mu.Unlock()
	for l.IsLeader() { // Raft answers those who wait when it leads no more
		time.Sleep(100 * time.Millisecond)
	}
	time.Sleep(time.Second)
	if err := l.Close(); err != nil {
		w.t.Error(err)
	}
}

// partition draws a side for each node.
func (w *world) partition(sides int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, name := range w.names {
		w.side[name] = w.random.IntN(sides)
	}
	w.wire()
}

// fault breaks or mends something.
func (w *world) fault() {
	name := w.names[w.random.IntN(len(w.names))]
	switch w.random.IntN(6) {
	case 0, 1:
		w.partition(2)
	case 2, 3:
		w.partition(1)
	default:
		if w.logs[name] == nil {
			w.start(name)
		} else {
			w.crash(name)
		}
	}
}

// checkLeaders notes who leads in which term: one node at most.
func (w *world) checkLeaders() {
	for name, l := range w.logs {
		term := l.Term()
		if !l.IsLeader() || l.Term() != term {
			continue
		}
		if other, ok := w.leaders[term]; ok && other != name {
			w.t.Errorf("%s and %s both lead in term %d", other, name, term)
		}
		w.leaders[term] = name
	}
}

// pick returns the log of a node that runs; nil where the one that was drawn does not.
func (w *world) pick(r *rand.Rand) *Log {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.logs[w.names[r.IntN(len(w.names))]]
}

// client asks for operations until ctx ends.
func (w *world) client(ctx context.Context, id int, r *rand.Rand) {
	for ctx.Err() == nil {
		time.Sleep(time.Duration(r.IntN(1000)) * time.Millisecond)
		l := w.pick(r)
		if l == nil {
			continue
		}
		in := w.draw(l, r)
		call := w.clock.Add(1)
		out, happened := w.ask(l, in) //nolint:contextcheck // what has begun is told
		if !happened {
			continue
		}
		back := w.clock.Add(1)
		if out.unknown {
			back = math.MaxInt64
		}
		w.mu.Lock()
		w.history = append(w.history, porcupine.Operation{ClientId: id, Input: in, Output: out, Call: call, Return: back})
		w.mu.Unlock()
	}
}

// draw returns an operation that fits what a node knows, more or less.
func (w *world) draw(l *Log, r *rand.Rand) input {
	kinds := []string{"begin_generation", "begin_commit", "begin_commit", "abort_commit", "commit_round", "commit_round", "read", "read"}
	in := input{job: strconv.Itoa(1 + r.IntN(simulatedJobs)), kind: kinds[r.IntN(len(kinds))]}
	j, err := l.State().Job(in.job)
	if err != nil || in.kind == "read" {
		return in
	}
	in.generation, in.round = j.Generation, j.Pending
	switch in.kind {
	case "begin_generation":
		in.round = j.CommittedRound()
	case "begin_commit":
		in.round = max(j.Pending, j.CommittedRound()) + uint64(r.IntN(3))
	}
	return in
}

// ask carries out an operation. It did not happen where the node does not lead.
func (w *world) ask(l *Log, in input) (out output, happened bool) {
	ctx, cancel := context.WithTimeout(w.t.Context(), 5*time.Second)
	defer cancel()
	if in.kind == "read" {
		if l.Leading(ctx) != nil {
			return output{}, false
		}
		j, err := l.State().Job(in.job)
		if err != nil {
			w.t.Error(err)
			return output{}, false
		}
		return output{now: standing{j.Generation, j.Pending, j.CommittedRound()}}, true
	}
	_, err := l.Apply(ctx, command(in))
	switch {
	case err == nil:
		return output{}, true
	case errors.Is(err, cluster.ErrStaleGeneration), errors.Is(err, cluster.ErrStaleRound):
		return output{refused: true}, true
	case errors.Is(err, ErrNotLeader):
		return output{}, false
	default:
		return output{unknown: true}, true
	}
}

// command is an operation as a command of the log.
func command(in input) cluster.Command {
	switch in.kind {
	case "begin_generation":
		return &cluster.BeginGeneration{Job: in.job, Generation: in.generation, From: in.round, Placement: []byte("1")}
	case "begin_commit":
		return &cluster.BeginCommit{Job: in.job, Generation: in.generation, Round: in.round}
	case "abort_commit":
		return &cluster.AbortCommit{Job: in.job, Generation: in.generation, Round: in.round}
	default:
		digest := shard.Digest("5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03")
		return &cluster.CommitRound{
			Job: in.job, Generation: in.generation, Round: in.round, Keep: 2,
			Manifest: cluster.Manifest{
				Job: in.job, Generation: in.generation, Round: in.round, Stages: 1,
				Shards:  []cluster.ShardRef{{Digest: digest, Bytes: 1, Nodes: []string{"n0"}}},
				Cursors: []shard.Cursor{{Step: in.round}},
			},
		}
	}
}

// submit proposes a job at whoever leads until one has it. It is for a time without faults.
func (w *world) submit(name string) {
	for w.t.Context().Err() == nil {
		for _, l := range w.logs {
			if _, err := l.Apply(w.t.Context(), &cluster.SubmitJob{Name: name}); err == nil {
				return
			}
		}
		time.Sleep(100 * time.Millisecond)
	}
	w.t.Fatal("nobody took the job")
}

// settle mends everything, and compares the states of all nodes.
func (w *world) settle() {
	w.partition(1)
	for _, name := range w.names {
		if w.logs[name] == nil {
			w.start(name)
		}
	}
	w.submit("last")
	var first []byte
	for name, l := range w.logs {
		waitFor(w.t, l, name+" to have the last job", func(s *cluster.State) bool { return len(s.Jobs()) == simulatedJobs+1 })
		data := bytesOf(w.t, l.State())
		if first == nil {
			first = data
		}
		if !bytes.Equal(first, data) {
			w.t.Errorf("%s has another state\n%s\nthan another\n%s", name, data, first)
		}
	}
	for _, l := range w.logs {
		if err := errors.Join(l.Err(), l.Close()); err != nil {
			w.t.Error(err)
		}
	}
}

// live runs clients and faults for a while and returns what the clients saw.
func live(t *testing.T, seed uint64, nodes int) (history []porcupine.Operation) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, seed, nodes)
		for range simulatedJobs {
			w.submit("job")
		}
		ctx, cancel := context.WithTimeout(t.Context(), *simulated)
		defer cancel()
		var clients sync.WaitGroup
		for id := range nodes {
			clients.Go(func() { w.client(ctx, id, rand.New(rand.NewPCG(seed, uint64(1+id)))) })
		}
		for ctx.Err() == nil {
			time.Sleep(time.Duration(w.random.IntN(6000)) * time.Millisecond)
			w.fault()
			w.checkLeaders()
		}
		clients.Wait()
		w.settle()
		history = w.history
	})
	return history
}

// TestSimulatedClustersAreLinearizable: over partitions, crashes and restarts, what every client was told fits one order of the commands, all nodes
// end with the same state, and no term has two leaders.
func TestSimulatedClustersAreLinearizable(t *testing.T) {
	for _, nodes := range []int{3, 5} {
		for seed := *firstSeed; seed < *firstSeed+*clusters; seed++ {
			t.Run(fmt.Sprintf("%d nodes, seed %d", nodes, seed), func(t *testing.T) {
				history := live(t, seed, nodes)
				told := 0
				for _, o := range history {
					if out, ok := o.Output.(output); ok && !out.unknown {
						told++
					}
				}
				t.Logf("%d operations, of %d the outcome is known", len(history), told)
				if told == 0 {
					t.Error("no client was told anything")
				}
				checkHistory(t, history)
			})
		}
	}
}
