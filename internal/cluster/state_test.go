package cluster_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

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

// encode is a command as it lies in the log.
func encode(tb testing.TB, c cluster.Command) []byte {
	tb.Helper()
	data, err := cluster.EncodeCommand(c, "v1.2")
	if err != nil {
		tb.Fatal(err)
	}
	return data
}

// TestStateScenarios runs testdata/state: one command a line as KIND JSON, or the rest of an envelope, and the jobs afterwards.
func TestStateScenarios(t *testing.T) {
	datadriven.Walk(t, "testdata/state", func(t *testing.T, path string) {
		state, index := cluster.NewState(), uint64(0)
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			var out strings.Builder
			for line := range strings.Lines(d.Input) {
				index++
				kind, body, _ := strings.Cut(strings.TrimSpace(line), " ")
				data := fmt.Sprintf(`AVGC{"v":1,"kind":%q,"body":%s}`, kind, expandHashes(expandManifest(body)))
				if kind == "entry" {
					data = body
				}
				next, result, err := state.ApplyEntry(index, []byte(data))
				refused, stops := errors.AsType[*cluster.RefusedError](err)
				switch {
				case stops:
					fmt.Fprintf(&out, "%v\n", refused)
					if next != state {
						t.Error("a refused entry changed the state")
					}
					index-- // Raft's next attempt
				case err != nil:
					fmt.Fprintf(&out, "%d %s: rejected: %v\n", index, kind, err)
				case result.Unknown:
					fmt.Fprintf(&out, "%d %s: ignored\n", index, kind)
				case result.Job == "":
					fmt.Fprintf(&out, "%d %s: applied\n", index, kind)
				default:
					fmt.Fprintf(&out, "%d %s: job %s generation %d\n", index, kind, result.Job, result.Generation)
				}
				state = next
			}
			return out.String() + describeState(state)
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

// expandHashes replaces "@NAME" by the SHA-256 of NAME, as JSON has bytes.
func expandHashes(body string) string {
	return regexp.MustCompile(`"@\w+"`).ReplaceAllStringFunc(body, func(name string) string {
		sum := sha256.Sum256([]byte(strings.Trim(name, `"@`)))
		return strconv.Quote(base64.StdEncoding.EncodeToString(sum[:]))
	})
}

func describeState(s *cluster.State) string {
	var out strings.Builder
	if a := s.Authority(); a != nil {
		fmt.Fprintf(&out, "  cluster %s\n", a.Cluster)
	}
	for _, n := range s.Nodes() {
		fmt.Fprintf(&out, "  node %s at %s, version %s, key %x, joined %s", n.Name, n.Address, n.Version, n.Key[:2], n.Joined.Format(time.RFC3339))
		if n.Draining {
			fmt.Fprintf(&out, ", drained by %s: %s", n.By, n.Reason)
		}
		out.WriteString("\n")
	}
	for _, k := range s.Tokens() {
		fmt.Fprintf(&out, "  token %x for %s %s, until %s, spent for %x\n", k.Hash[:2], k.Role, k.User, k.Expires.Format(time.RFC3339), k.Spent[:min(2, len(k.Spent))])
	}
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
		fmt.Fprintf(&out, "  %d ignored\n", s.Unknown)
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
	if random.IntN(6) == 0 {
		return randomMember(random, at)
	}
	switch random.IntN(12) {
	case 0:
		return &cluster.SubmitJob{Name: strconv.Itoa(random.IntN(100)), File: "version: 1 <&>", Set: []string{"a=b"}, Submitted: at}
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

// randomMember proposes something about a cluster's members.
func randomMember(random *rand.Rand, at time.Time) cluster.Command {
	hash := func(n int) []byte { return bytes.Repeat([]byte{byte(n)}, 32) }
	n := random.IntN(4)
	node := cluster.Node{Name: strconv.Itoa(n), Address: fmt.Sprintf("192.0.2.1:%d", 1+random.IntN(4)), Key: hash(n)}
	switch random.IntN(8) {
	case 0:
		return &cluster.BeginCluster{Authority: cluster.Authority{Cluster: "c", Certificates: [][]byte{{1}}, GossipKey: hash(1)}, Node: node}
	case 1:
		return &cluster.AddToken{Token: cluster.Token{Hash: hash(n), Role: "node", Expires: at.Add(time.Hour * 1000)}, At: at}
	case 2:
		return &cluster.SpendToken{Hash: hash(n), Key: hash(n), At: at}
	case 3:
		return &cluster.UpdateNode{Name: node.Name, Address: node.Address}
	case 4:
		return &cluster.DrainNode{Name: node.Name, Reason: "<&>"}
	case 5:
		return &cluster.RemoveNode{Name: node.Name}
	}
	return &cluster.JoinNode{Hash: hash(random.IntN(4)), Node: node, At: at}
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
	apply := func(s *cluster.State, data []byte) *cluster.State {
		next, _, err := s.ApplyEntry(s.Index+1, data)
		if _, refused := errors.AsType[*cluster.RefusedError](err); refused {
			t.Fatal(err)
		}
		return next
	}
	for seed := range uint64(10) {
		random := rand.New(rand.NewPCG(seed, 0))
		state := cluster.NewState()
		var (
			log    [][]byte
			states []*cluster.State
			texts  [][]byte
		)
		for range 120 {
			entry := encode(t, randomCommand(random, state))
			state = apply(state, entry)
			log, states, texts = append(log, entry), append(states, state), append(texts, bytesOf(t, state))
		}
		final := texts[len(texts)-1]
		for at := range log {
			if !bytes.Equal(bytesOf(t, states[at]), texts[at]) {
				t.Fatalf("seed %d: the state after entry %d has changed since", seed, at+1)
			}
			if at%10 != 0 {
				continue
			}
			restored, err := cluster.ReadState(bytes.NewReader(texts[at]))
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(bytesOf(t, restored), texts[at]) {
				t.Fatalf("seed %d: snapshot after entry %d does not survive the round trip", seed, at+1)
			}
			for _, entry := range log[at+1:] {
				restored = apply(restored, entry)
			}
			if got := bytesOf(t, restored); !bytes.Equal(got, final) {
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
		{"two groups", func(m *cluster.Manifest) { m.Shards = append(m.Shards, m.Shards...) }, ""},
		{"a part of a second group", func(m *cluster.Manifest) { m.Shards = append(m.Shards, m.Shards[:2]...) }, "5 shards for 3 stages"},
		{"a second group out of order", func(m *cluster.Manifest) {
			m.Shards = append(m.Shards, m.Shards[1], m.Shards[0], m.Shards[2])
		}, "shard 3 is of stage 1"},
		{"groups that differ in size", func(m *cluster.Manifest) { m.Shards = slices.Concat(m.Shards, m.Shards, m.Shards) }, "2 pipelines in 3 groups"},
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

// TestARoundSaysWhichShardsHavePipelines, and falls back on those of the first group for the center.
func TestARoundSaysWhichShardsHavePipelines(t *testing.T) {
	m := cluster.Manifest{Stages: 2, Cursors: make([]shard.Cursor, 6)}
	for i := range 6 {
		m.Shards = append(m.Shards, cluster.ShardRef{Stage: i % 2, Digest: shard.Digest(strconv.Itoa(i))})
	}
	for want, p := range map[string][2]int{"01": {0, 2}, "23": {2, 3}, "2345": {3, 5}, "012345": {0, 9}, "45": {5, 6}} {
		var got strings.Builder
		for _, s := range m.Holding(p[0], p[1]) {
			got.WriteString(string(s.Digest))
		}
		if got.String() != want {
			t.Errorf("pipelines %v are in shards %s, expected %s", p, got.String(), want)
		}
	}
	if got := m.Holding(6, 8); len(got) != 2 || got[0].Digest != "0" || len(m.Model().Shards) != 2 || m.Groups() != 3 {
		t.Errorf("pipelines that the round does not have are in %v; %d groups", got, m.Groups())
	}
	one := cluster.CommitRound{Manifest: *m.Model()}
	if a, b := cluster.NeededVersion(&one), cluster.NeededVersion(&cluster.CommitRound{Manifest: m}); a != 1 || b < 2 {
		t.Errorf("a round of one group needs version %d of commands, one of several %d", a, b)
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
			t.Errorf("%s: %v, expected %v", cluster.Kind(c.command), err, c.expect)
		}
	}
}

// TestStatesOfOtherVersions: one of version 1, which had a header, is read; one that is cut or of a newer program is not.
func TestStatesOfOtherVersions(t *testing.T) {
	state, _, err := cluster.NewState().Apply(1, &cluster.SubmitJob{Name: "x"})
	if err != nil {
		t.Fatal(err)
	}
	whole := bytesOf(t, state)
	older := append([]byte("AVGS\x01\x00\x00\x00 length, CRC"), bytes.Replace(whole, []byte(`"version":2,`), nil, 1)...)
	if again, err := cluster.ReadState(bytes.NewReader(older)); err != nil || !bytes.Equal(bytesOf(t, again), whole) {
		t.Errorf("of version 1: %v", err)
	}
	newer := bytes.Replace(whole, []byte(`"version":2`), []byte(`"version":4`), 1)
	for _, data := range [][]byte{newer, whole[:len(whole)-1], older[:9], nil} {
		if s, err := cluster.ReadState(bytes.NewReader(data)); err == nil || s != nil {
			t.Errorf("%q: error %v", data, err)
		}
	}
}

// FuzzApplyEntry: no entry may crash a host, and what is not refused leaves a state that can be written.
func FuzzApplyEntry(f *testing.F) {
	for _, c := range []cluster.Command{&cluster.SubmitJob{Name: "x"}, &cluster.CommitRound{Job: "1", Manifest: manifestFor("1", 0, 1, 2), Keep: 1}, &cluster.CancelJob{Job: "1"}} {
		f.Add(encode(f, c))
	}
	f.Add([]byte(`AVGC{"v":2,"kind":"future","ignorable":true,"body":{}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		state, _, err := cluster.NewState().Apply(1, &cluster.SubmitJob{Name: "y"})
		if err != nil {
			t.Fatal(err)
		}
		state, _, _ = state.ApplyEntry(2, data) // whatever it says
		bytesOf(t, state)
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

// The file with what a stage does not train is one of a round's, and is held to the same rules as its shards.
func TestARoundHasTheFilesOfFrozenParameters(t *testing.T) {
	m := manifestFor("1", 1, 4, 3)
	if len(m.Files()) != len(m.Shards) {
		t.Errorf("%d files without anything frozen", len(m.Files()))
	}
	m.Shards[1].Frozen, m.Shards[1].FrozenBytes = digestOf(99), 7
	files := m.Files()
	if err := m.Validate(); err != nil || len(files) != len(m.Shards)+1 || files[2].Digest != digestOf(99) || files[2].Bytes != 7 || files[2].Stage != 1 {
		t.Errorf("files %+v (%v)", files, err)
	}
	m.Shards[1].FrozenBytes = 0
	if err := m.Validate(); err == nil || !strings.Contains(err.Error(), "stage 1: 0 bytes") {
		t.Errorf("without a length: %v", err)
	}
}
