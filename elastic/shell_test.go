package elastic

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/avgpipe/avgpipe/stage/flat"
)

// shell owns one shard and executes the center's actions, as package elastic's documentation shows. Its training is made up,
// but depends on the weights: any wrong bit in them spreads.
type shell struct {
	t        *testing.T
	method   Method
	center   *Center
	shard    Shard
	local    func(pipeline int, round uint64, x flat.Host) flat.Host
	n        int
	merged   uint64 // the newest round in which a message was
	x        map[int]flat.Host
	g        map[int]flat.Host // gradients, where those are exchanged: what would have been the updates
	messages map[int][]flat.Host
	trained  map[int]uint64       // the newest round each pipeline has trained for
	released map[int]uint64       // the newest round each was released from
	advanced map[uint64]flat.Host // x~ of each round
	counts   map[uint64]int
	captured map[[2]uint64]flat.Host // round, pipeline -> weights
	due      map[[2]uint64]bool      // captures that wait for the update
	snapped  map[uint64]flat.Host
	kept     map[uint64][]flat.Host
}

// initial is x~_0, the same in every test.
func initial(n int) flat.Host {
	v := flat.NewHost(n)
	random := rand.New(rand.NewPCG(1, 2))
	for i := range v {
		v[i] = random.Float32()*2 - 1
	}
	return v
}

// localUpdate is a made-up optimizer: a step that depends on the pipeline, the round and the weights.
func localUpdate(pipeline int, round uint64, x flat.Host) flat.Host {
	d := flat.NewHost(len(x))
	random := rand.New(rand.NewPCG(uint64(pipeline), round))
	for i := range d {
		d[i] = 0.1*(random.Float32()*2-1) - 0.05*x[i]
	}
	return d
}

// wildUpdate moves the weights across many orders of magnitude, so that sums round, and so depend on their order: the update of
// localUpdate is a multiple of the weights' last bit, and adding a few of those is exact in any order.
func wildUpdate(pipeline int, round uint64, x flat.Host) flat.Host {
	d := flat.NewHost(len(x))
	random := rand.New(rand.NewPCG(uint64(pipeline), round))
	for i := range d {
		d[i] = (random.Float32()*2-1)*float32(math.Ldexp(1, random.IntN(24)-12)) - x[i]
	}
	return d
}

// newShell starts N pipelines on x~_0, at round 0.
func newShell(t *testing.T, m Method, pipelines int, n int) *shell {
	t.Helper()
	s := &shell{
		t: t, method: m, n: n, local: localUpdate,
		shard: newShard(m.Needs(), n),
		x:     map[int]flat.Host{}, g: map[int]flat.Host{}, messages: map[int][]flat.Host{}, trained: map[int]uint64{}, released: map[int]uint64{},
		advanced: map[uint64]flat.Host{}, counts: map[uint64]int{},
		captured: map[[2]uint64]flat.Host{}, due: map[[2]uint64]bool{}, snapped: map[uint64]flat.Host{}, kept: map[uint64][]flat.Host{},
	}
	var members []int
	for i := range pipelines {
		members = append(members, i)
		s.addPipeline(i, initial(n), 0)
	}
	s.start(members, 0)
	return s
}

// newShard is a shard at round 0.
func newShard(needs Needs, n int) Shard {
	s := Shard{Center: initial(n), Sum: flat.NewHost(n)}
	if needs.Gradients {
		s.Center.Zero()
	}
	for range needs.State {
		s.State = append(s.State, flat.NewHost(n))
	}
	return s
}

// newWildShell is newShell with wildUpdate, to be compared with sequential.
func newWildShell(t *testing.T, m Method, pipelines int, n int) *shell {
	t.Helper()
	s := newShell(t, m, pipelines, n)
	s.local = wildUpdate
	return s
}

func (s *shell) start(members []int, round uint64) {
	s.center = NewCenter(s.method.Needs(), round, members...)
}

func (s *shell) addPipeline(i int, x flat.Host, round uint64) {
	s.x[i], s.g[i] = slices.Clone(x), flat.NewHost(s.n)
	s.trained[i], s.released[i] = round, round
	for range s.method.Needs().Buffers() {
		s.messages[i] = append(s.messages[i], flat.NewHost(s.n))
	}
}

// message is the pipeline's message of a round: the buffers take turns.
func (s *shell) message(pipeline int, round uint64) flat.Host {
	if s.method.Needs().Borrows() {
		return s.g[pipeline]
	}
	buffers := s.messages[pipeline]
	return buffers[round%uint64(len(buffers))]
}

// train runs one round of the pipeline's own training: x moves, and the message holds by how much. What the message held
// before is garbage, as after a Merge.
func (s *shell) train(pipeline int, update flat.Host) {
	s.trained[pipeline]++
	message := s.message(pipeline, s.trained[pipeline])
	if s.method.Needs().Gradients {
		copy(s.g[pipeline], update)
		copy(message, update)
		return
	}
	for i, d := range update {
		before := s.x[pipeline][i]
		s.x[pipeline][i] += d
		if s.method.Needs().Delta {
			message[i] = s.x[pipeline][i] - before
		}
	}
}

// update trains one round and hands it over.
func (s *shell) update(pipeline int) {
	s.t.Helper()
	s.updateWith(pipeline, s.local(pipeline, s.trained[pipeline]+1, s.x[pipeline]))
}

func (s *shell) updateWith(pipeline int, update flat.Host) {
	s.t.Helper()
	s.train(pipeline, update)
	actions, err := s.center.Update(pipeline, s.trained[pipeline])
	if err != nil {
		s.t.Fatal(err)
	}
	s.execute(actions)
}

// execute does what the center asks for.
func (s *shell) execute(actions []Action) {
	s.t.Helper()
	for _, a := range actions {
		switch a.Kind {
		case Pull:
			pulled := s.x
			if s.method.Needs().Gradients {
				pulled = s.g
			}
			pull(s.method, a.Pipeline, a.Round, pulled[a.Pipeline], s.message(a.Pipeline, a.Round), s.shard.Center)
		case Capture:
			s.due[[2]uint64{a.Round, uint64(a.Pipeline)}] = true
			if !s.method.Needs().Gradients {
				s.capture(a)
			}
		case Release:
			if s.released[a.Pipeline] != a.Round-1 {
				s.t.Fatalf("%s: it was last released from round %d", a, s.released[a.Pipeline])
			}
			s.released[a.Pipeline] = a.Round
			if needs := s.method.Needs(); needs.Gradients {
				if !needs.Idle(a.Round) {
					s.x[a.Pipeline].Axpy(1, s.g[a.Pipeline])
				}
				s.capture(a)
			}
		case Merge:
			if !s.method.Needs().Visits(a.Pipeline, a.Round) {
				break
			}
			message := s.message(a.Pipeline, a.Round)
			s.method.Merge(s.shard, message, a.First)
			s.merged = a.Round
			for i := range message { // it is the pipeline's again: nobody may still need its content
				message[i] = 1e30
			}
		case Advance:
			if s.merged == a.Round {
				s.method.Advance(s.shard, a.Count)
			}
			s.advanced[a.Round] = s.centerCopy()
			s.counts[a.Round] = a.Count
		case Snapshot:
			s.snapped[a.Round] = s.centerCopy()
			for _, v := range s.method.Needs().Kept(s.shard) {
				s.kept[a.Round] = append(s.kept[a.Round], slices.Clone(v.(flat.Host)))
			}
		case Admit:
			s.addPipeline(a.Pipeline, s.centerCopy(), a.Round)
		default:
			s.t.Fatalf("unknown action %v", a)
		}
	}
}

// pull is the pipeline's side of a round.
func pull(m Method, pipeline int, round uint64, x, message, center flat.Vector) {
	needs := m.Needs()
	if needs.Mixes(round) {
		m.(Mixer).Mix(x, center)
	}
	if needs.Visits(pipeline, round) {
		m.Pull(x, message, center)
	}
}

// capture keeps a pipeline's weights for a snapshot that waits for them.
func (s *shell) capture(a Action) {
	if key := [2]uint64{a.Round, uint64(a.Pipeline)}; s.due[key] {
		s.captured[key] = slices.Clone(s.x[a.Pipeline])
	}
}

func (s *shell) centerCopy() flat.Host {
	v := flat.NewHost(s.n)
	s.shard.Center.Read(v, 0)
	return v
}

// mayTrain reports whether the pipeline could run its next round now and have it accepted.
func (s *shell) mayTrain(pipeline int) bool {
	return s.released[pipeline] == s.trained[pipeline] && s.center.check(pipeline, s.trained[pipeline]+1) == nil
}

// newMethod makes an elastic method or fails the test.
func newMethod(t *testing.T, c Config) Method {
	t.Helper()
	return newMethodOf(t, "elastic", c)
}

// newMethodOf makes a method or fails the test.
func newMethodOf(t *testing.T, name string, c Config) Method {
	t.Helper()
	m, err := NewMethod(name, c)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// everyMethod is each method as it may be configured, for so many pipelines.
func everyMethod(t *testing.T, pipelines int) map[string]Method {
	t.Helper()
	all := map[string]Method{}
	for _, pull := range []PullRule{PullPredicted, PullNew, PullOld, PullElastic} {
		all["elastic "+string(pull)] = newMethod(t, Config{Pull: pull, Pipelines: pipelines})
	}
	for _, name := range Methods() {
		if name != "elastic" {
			all[name] = newMethodOf(t, name, Config{Pipelines: pipelines, OuterMomentum: 0.75})
		}
	}
	for _, c := range []Config{{Fragments: 2}, {Fragments: 3, Mix: 0.5}} { // each fragment by itself
		c.Pipelines, c.OuterMomentum = pipelines, 0.75
		layout := Layout{{Range: flat.Range{To: 1}}, {Range: flat.Range{From: 1, To: 2}, Trained: 1}, {Range: flat.Range{From: 2, To: 3}, Trained: 2}}
		m := newMethodOf(t, "streaming-diloco", c)
		for i := range c.Fragments {
			rules := m
			if pipelines > 1 {
				rules = Cut(m, layout)[i].Rules
			}
			all[fmt.Sprintf("streaming-diloco %d of %d", i, c.Fragments)] = rules
		}
	}
	all["pipesgd after 3"] = newMethodOf(t, "pipesgd", Config{Pipelines: pipelines, Warmup: 3})
	all["sapipe late"] = newMethodOf(t, "sapipe", Config{Pipelines: pipelines, StaleLayers: 1, Prediction: PredictNothing})
	return all
}

// sequential runs the training of newWildShell one pipeline after the other, without a Center: the equations as they stand. member says
// whether a pipeline counts in a round. It returns x~ of every round, and the weights that each pipeline left it with.
func sequential(m Method, rounds uint64, n int, pipelines int, member func(pipeline int, round uint64) bool) (
	centers map[uint64]flat.Host, weights map[[2]uint64]flat.Host,
) {
	centers, weights = map[uint64]flat.Host{}, map[[2]uint64]flat.Host{}
	shard := newShard(m.Needs(), n)
	x := map[int]flat.Host{}
	for r := uint64(1); r <= rounds; r++ {
		messages := map[int]flat.Host{}
		for i := range pipelines {
			if !member(i, r) {
				delete(x, i)
				continue
			}
			if x[i] == nil { // joins
				x[i] = initial(n)
				if r > 1 {
					x[i].Copy(shard.Center)
				}
			}
			messages[i] = flat.NewHost(n)
			if m.Needs().Gradients {
				copy(messages[i], wildUpdate(i, r, x[i]))
				continue
			}
			for j, d := range wildUpdate(i, r, x[i]) {
				before := x[i][j]
				x[i][j] += d
				messages[i][j] = x[i][j] - before
			}
		}
		late := flat.NewHost(n)
		late.Copy(shard.Center)
		if m.Needs().Timing == Before && !m.Needs().Gradients {
			pullAll(m, r, x, messages, shard.Center)
		}
		first := true
		for i := range pipelines {
			if messages[i] != nil && m.Needs().Visits(i, r) {
				m.Merge(shard, messages[i], first)
				first = false
			}
		}
		if !first {
			m.Advance(shard, len(messages))
		}
		switch needs := m.Needs(); {
		case needs.Gradients && needs.Idle(r):
		case needs.Gradients && needs.TimingOf(r) == Before:
			applyAll(m, x, late)
		case needs.Gradients:
			applyAll(m, x, shard.Center)
		case needs.Timing == After:
			pullAll(m, r, x, messages, shard.Center)
		}
		centers[r] = flat.NewHost(n)
		shard.Center.Read(centers[r], 0)
		for i := range x {
			weights[[2]uint64{r, uint64(i)}] = slices.Clone(x[i])
		}
	}
	return centers, weights
}

func pullAll(m Method, round uint64, x, messages map[int]flat.Host, center flat.Vector) {
	for i := range messages {
		pull(m, i, round, x[i], messages[i], center)
	}
}

// applyAll has all pipelines apply the gradient that they pull.
func applyAll(m Method, x map[int]flat.Host, mean flat.Vector) {
	for i := range x {
		g := flat.NewHost(len(x[i]))
		m.Pull(g, nil, mean)
		x[i].Axpy(1, g)
	}
}

// sameBits compares two vectors exactly.
func sameBits(a, b flat.Host) error {
	for i := range a {
		if a[i] != b[i] {
			return fmt.Errorf("element %d is %v, expected %v", i, a[i], b[i])
		}
	}
	if len(a) != len(b) {
		return fmt.Errorf("%d elements, expected %d", len(a), len(b))
	}
	return nil
}
