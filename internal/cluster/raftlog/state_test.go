package raftlog

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/hashicorp/raft"

	"github.com/avgpipe/avgpipe/internal/cluster"
	"github.com/avgpipe/avgpipe/internal/shard"
)

// digestOf is a made-up digest.
func digestOf(n int) shard.Digest { return shard.Digest(fmt.Sprintf("%064x", n)) }

// manifestFor is a whole manifest.
func manifestFor(job string, generation, round uint64, stages int) cluster.Manifest {
	m := cluster.Manifest{
		Job: job, Generation: generation, Round: round, Stages: stages, SamplesSeen: round * 8,
		Cursors: []shard.Cursor{{Pipeline: 0, Step: round}, {Pipeline: 1, Step: round}}, Meta: json.RawMessage(`{"loss":2.5}`),
	}
	for k := range stages {
		m.Shards = append(m.Shards, cluster.ShardRef{Stage: k, Digest: digestOf(int(round)*10 + k), Bytes: 100, Nodes: []string{"a"}})
	}
	return m
}

// logEntry is a command as Raft hands it to the state machine.
func logEntry(tb testing.TB, index uint64, c cluster.Command) *raft.Log {
	tb.Helper()
	data, err := cluster.EncodeCommand(c)
	if err != nil {
		tb.Fatal(err)
	}
	return &raft.Log{Index: index, Term: 1, Data: data}
}

// TestStateScenarios runs testdata/state: one command a line as KIND JSON, and the jobs afterwards.
func TestStateScenarios(t *testing.T) {
	datadriven.Walk(t, "testdata/state", func(t *testing.T, path string) {
		fsm, index := NewFSM(), uint64(0)
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			var out strings.Builder
			for line := range strings.Lines(d.Input) {
				index++
				kind, body, _ := strings.Cut(strings.TrimSpace(line), " ")
				data := fmt.Sprintf(`AVGC{"v":1,"kind":%q,"body":%s}`, kind, expandManifest(body))
				o, ok := fsm.Apply(&raft.Log{Index: index, Data: []byte(data)}).(outcome)
				switch {
				case !ok:
					t.Fatal("Apply returned something else than an outcome")
				case o.err != nil:
					fmt.Fprintf(&out, "%d %s: rejected: %v\n", index, kind, o.err)
				case o.result.Unknown:
					fmt.Fprintf(&out, "%d %s: skipped\n", index, kind)
				default:
					fmt.Fprintf(&out, "%d %s: job %s generation %d\n", index, kind, o.result.Job, o.result.Generation)
				}
			}
			return out.String() + describeState(fsm.State())
		})
	})
}

// expandManifest replaces "manifest":"JOB GENERATION ROUND STAGES" by a whole manifest, to keep scenarios readable.
func expandManifest(body string) string {
	before, rest, ok := strings.Cut(body, `"manifest":"`)
	if !ok {
		return body
	}
	text, after, _ := strings.Cut(rest, `"`)
	var (
		job               string
		generation, round uint64
		stages            int
	)
	if _, err := fmt.Sscan(text, &job, &generation, &round, &stages); err != nil {
		return err.Error()
	}
	m, err := json.Marshal(manifestFor(job, generation, round, stages))
	if err != nil {
		return err.Error()
	}
	return before + `"manifest":` + string(m) + after
}

func describeState(s *cluster.State) string {
	var out strings.Builder
	for _, j := range s.Jobs() {
		fmt.Fprintf(&out, "  job %s %q: %s (%s), generation %d, placement %s, pending %d, durable", j.ID, j.Name, j.State, j.Reason,
			j.Generation, j.Placement, j.Pending)
		for _, m := range j.Committed {
			fmt.Fprintf(&out, " %d", m.Round)
		}
		if j.Cancelling {
			fmt.Fprintf(&out, ", cancelling for %q", j.CancelledBy)
		}
		if j.Report != nil {
			fmt.Fprintf(&out, ", spec %s, report %s", j.Spec, j.Report)
		}
		out.WriteString("\n")
	}
	if s.Unknown > 0 {
		fmt.Fprintf(&out, "  %d skipped\n", s.Unknown)
	}
	return out.String()
}

// randomCommand proposes something that is often right and often not.
func randomCommand(random *rand.Rand, s *cluster.State) cluster.Command {
	job, generation, round := "1", uint64(random.IntN(3)), uint64(random.IntN(12))
	if jobs := s.Jobs(); len(jobs) > 0 {
		j := jobs[random.IntN(len(jobs))]
		job = j.ID
		if random.IntN(4) > 0 {
			generation = j.Generation
		}
		if random.IntN(4) > 0 {
			round = max(j.Pending, j.CommittedRound()+1)
		}
	}
	at := time.Unix(int64(random.IntN(1e9)), 0)
	switch random.IntN(12) {
	case 0:
		return &cluster.SubmitJob{Name: strconv.Itoa(random.IntN(100)), Source: "version: 1 <&>", Set: []string{"a=b"}, Submitted: at}
	case 1:
		return &cluster.SetState{Job: job, Generation: generation, State: cluster.Running, Reason: "\u2028"}
	case 2:
		return &cluster.BeginGeneration{Job: job, Generation: generation, Placement: json.RawMessage(`{ "nodes": ["<a>"] }`), Reason: "x"}
	case 3, 4, 5:
		return &cluster.BeginCommit{Job: job, Generation: generation, Round: round}
	case 6, 7:
		return &cluster.CommitRound{Job: job, Generation: generation, Round: round, Manifest: manifestFor(job, generation, round, 2), Keep: 2}
	case 8:
		return &cluster.AbortCommit{Job: job, Generation: generation, Round: round}
	case 10:
		return &cluster.BeginTuning{Job: job, Generation: generation, Reason: "measuring"}
	case 11:
		return &cluster.ResolveJob{Job: job, Generation: generation, Spec: json.RawMessage(`{ "stages": 2 }`), Report: json.RawMessage(`{"a":[]}`)}
	}
	if random.IntN(5) > 0 {
		return &cluster.RequestCancel{Job: job, Reason: "asked"}
	}
	if random.IntN(5) > 0 {
		return &cluster.EndJob{Job: job, Generation: generation, State: cluster.Running}
	}
	return &cluster.EndJob{Job: job, Generation: generation, State: cluster.Done, Reason: "finished", At: at}
}

// bytesOf encodes a state.
func bytesOf(t *testing.T, s *cluster.State) []byte {
	t.Helper()
	data, err := s.MarshalBinary()
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// TestReplayGivesIdenticalStateBytes: the same log gives the same bytes, from the start and from a snapshot at any entry; and a state
// once handed out never changes.
func TestReplayGivesIdenticalStateBytes(t *testing.T) {
	for seed := range uint64(10) {
		random := rand.New(rand.NewPCG(seed, 0))
		fsm := NewFSM()
		var (
			log    []*raft.Log
			states []*cluster.State
			texts  [][]byte
		)
		for i := range uint64(120) {
			entry := logEntry(t, i+1, randomCommand(random, fsm.State()))
			fsm.Apply(entry)
			log, states, texts = append(log, entry), append(states, fsm.State()), append(texts, bytesOf(t, fsm.State()))
		}
		final := texts[len(texts)-1]
		for at := range log {
			if !bytes.Equal(bytesOf(t, states[at]), texts[at]) {
				t.Fatalf("seed %d: the state after entry %d has changed since", seed, at+1)
			}
			if at%10 != 0 {
				continue
			}
			restored := NewFSM()
			if err := restored.Restore(io.NopCloser(bytes.NewReader(texts[at]))); err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(bytesOf(t, restored.State()), texts[at]) {
				t.Fatalf("seed %d: snapshot after entry %d does not survive the round trip", seed, at+1)
			}
			for _, entry := range log[at+1:] {
				restored.Apply(entry)
			}
			if got := bytesOf(t, restored.State()); !bytes.Equal(got, final) {
				t.Fatalf("seed %d: replay from entry %d gives\n%s\nexpected\n%s", seed, at+1, got, final)
			}
		}
	}
}

// TestDurableRoundsOnlyGrow: whatever is proposed, a job's last durable round never goes back, its generation never shrinks, and an
// ended job stays as it is.
func TestDurableRoundsOnlyGrow(t *testing.T) {
	committed := 0
	for seed := range uint64(30) {
		random := rand.New(rand.NewPCG(seed, 1))
		s := cluster.NewState()
		for i := range uint64(200) {
			next, _, err := s.Apply(i+1, randomCommand(random, s))
			if err != nil && !strings.Contains(describeState(next), describeState(s)) {
				t.Fatalf("a rejected command changed the state: %v\n%s\n%s", err, describeState(s), describeState(next))
			}
			for _, j := range s.Jobs() {
				after, err := next.Job(j.ID)
				if err != nil {
					t.Fatal(err)
				}
				if after.CommittedRound() < j.CommittedRound() || after.Generation < j.Generation || len(after.Committed) > 2 {
					t.Fatalf("job %s went from round %d generation %d to round %d generation %d, %d kept",
						j.ID, j.CommittedRound(), j.Generation, after.CommittedRound(), after.Generation, len(after.Committed))
				}
				if j.State.Ended() && after.State != j.State {
					t.Fatalf("job %s was %s and is %s", j.ID, j.State, after.State)
				}
				if after.CommittedRound() > j.CommittedRound() {
					committed++
				}
			}
			s = next
		}
	}
	if committed < 50 {
		t.Errorf("only %d rounds were committed: the test tries too little", committed)
	}
}

// TestManifestMustBeWhole: shards missing, twice, without digest, size or node; cursors missing or twice.
func TestManifestMustBeWhole(t *testing.T) {
	cases := []struct {
		name   string
		change func(m *cluster.Manifest)
		expect string
	}{
		{"whole", func(*cluster.Manifest) {}, ""},
		{"shard missing", func(m *cluster.Manifest) { m.Shards = m.Shards[:2] }, "2 shards for 3 stages"},
		{"shard twice", func(m *cluster.Manifest) { m.Shards[2] = m.Shards[1] }, "shard 2 is of stage 1"},
		{"no stages", func(m *cluster.Manifest) { m.Shards, m.Stages = nil, 0 }, "0 shards for 0 stages"},
		{"digest", func(m *cluster.Manifest) { m.Shards[1].Digest = "ABC" }, "expected 64 lower-case hexadecimal digits"},
		{"size", func(m *cluster.Manifest) { m.Shards[1].Bytes = 0 }, "0 bytes on nodes [a]"},
		{"no node", func(m *cluster.Manifest) { m.Shards[1].Nodes = nil }, "100 bytes on nodes []"},
		{"no cursors", func(m *cluster.Manifest) { m.Cursors = nil }, "no cursors"},
		{"cursor twice", func(m *cluster.Manifest) { m.Cursors[1].Pipeline = 0 }, "cursor of pipeline 0 after that of 0"},
		{"meta", func(m *cluster.Manifest) { m.Meta = json.RawMessage("{") }, "meta is not valid JSON"},
	}
	for _, c := range cases {
		m := manifestFor("7", 1, 5, 3)
		c.change(&m)
		err := m.Validate()
		if (err == nil) != (c.expect == "") || (err != nil && !strings.Contains(err.Error(), "job 7 round 5: "+c.expect) && !strings.Contains(err.Error(), c.expect)) {
			t.Errorf("%s: error %v, expected %q", c.name, err, c.expect)
		}
	}
}

// TestErrorsCanBeTold by errors.Is.
func TestErrorsCanBeTold(t *testing.T) {
	s := cluster.NewState()
	apply := func(c cluster.Command) error {
		next, _, err := s.Apply(s.Index+1, c)
		s = next
		return err
	}
	if err := apply(&cluster.SubmitJob{Name: "x"}); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		command cluster.Command
		expect  error
	}{
		{&cluster.SetState{Job: "2", State: cluster.Running}, cluster.ErrNoJob},
		{&cluster.SetState{Job: "1", Generation: 1, State: cluster.Running}, cluster.ErrStaleGeneration},
		{&cluster.BeginCommit{Job: "1", Round: 0}, cluster.ErrStaleRound},
		{&cluster.AbortCommit{Job: "1", Round: 4}, cluster.ErrStaleRound},
		{&cluster.CommitRound{Job: "1", Round: 4, Keep: 1}, cluster.ErrStaleRound},
		{&cluster.CancelJob{Job: "1", Reason: "asked"}, nil},
		{&cluster.CancelJob{Job: "1"}, cluster.ErrEnded},
		{&cluster.BeginGeneration{Job: "1"}, cluster.ErrEnded},
	} {
		if err := apply(c.command); !errors.Is(err, c.expect) {
			t.Errorf("%s: %v, expected %v", c.command.Kind(), err, c.expect)
		}
	}
}

// TestChangedTellsOfANewState.
func TestChangedTellsOfANewState(t *testing.T) {
	fsm := NewFSM()
	before, changed := fsm.Changed()
	select {
	case <-changed:
		t.Fatal("closed before anything changed")
	default:
	}
	fsm.Apply(logEntry(t, 1, &cluster.SubmitJob{Name: "x"}))
	select {
	case <-changed:
	default:
		t.Fatal("not closed by a change")
	}
	if len(before.Jobs()) != 0 || len(fsm.State().Jobs()) != 1 {
		t.Errorf("%d jobs before, %d after", len(before.Jobs()), len(fsm.State().Jobs()))
	}
}

// TestDamagedStateIsNotRestored: any byte flipped, any cut, and the state before stands.
func TestDamagedStateIsNotRestored(t *testing.T) {
	fsm := NewFSM()
	fsm.Apply(logEntry(t, 1, &cluster.SubmitJob{Name: "x", Source: "y"}))
	whole := bytesOf(t, fsm.State())
	try := func(what string, data []byte) {
		target := NewFSM()
		if err := target.Restore(io.NopCloser(bytes.NewReader(data))); err == nil || len(target.State().Jobs()) != 0 {
			t.Errorf("%s: error %v, %d jobs", what, err, len(target.State().Jobs()))
		}
	}
	for i := range whole {
		flipped := bytes.Clone(whole)
		flipped[i] ^= 0x10
		try(fmt.Sprintf("byte %d flipped", i), flipped)
		try(fmt.Sprintf("cut to %d", i), whole[:i])
	}
	try("a byte more", append(bytes.Clone(whole), 0))
}

// FuzzDecodeCommand: no entry may crash a host, and what is accepted is applied or rejected, and encodes again.
func FuzzDecodeCommand(f *testing.F) {
	for _, c := range []cluster.Command{&cluster.SubmitJob{Name: "x"}, &cluster.CommitRound{Job: "1", Manifest: manifestFor("1", 0, 1, 2), Keep: 1}, &cluster.CancelJob{Job: "1"}} {
		data, err := cluster.EncodeCommand(c)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Add([]byte(`AVGC{"v":2,"kind":"future","body":{}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		fsm := NewFSM()
		fsm.Apply(logEntry(t, 1, &cluster.SubmitJob{Name: "y"}))
		fsm.Apply(&raft.Log{Index: 2, Data: data})
		bytesOf(t, fsm.State())
		c, err := cluster.DecodeCommand(data)
		if err != nil || c == nil {
			return
		}
		if _, err := cluster.EncodeCommand(c); err != nil {
			t.Errorf("accepted, but cannot be encoded: %v", err)
		}
	})
}

// FuzzReadState: no snapshot may crash a host, and what is accepted survives another round trip.
func FuzzReadState(f *testing.F) {
	s, _, err := cluster.NewState().Apply(1, &cluster.SubmitJob{Name: "x"})
	if err != nil {
		f.Fatal(err)
	}
	data, err := s.MarshalBinary()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := cluster.ReadState(bytes.NewReader(data))
		if err != nil {
			return
		}
		if _, err := cluster.ReadState(bytes.NewReader(bytesOf(t, s))); err != nil {
			t.Error(err)
		}
	})
}
