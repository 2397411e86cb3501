package elastic

import (
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/avgpipe/avgpipe/stage/flat"
)

var explored = flag.Int("schedules", 3000, "how many schedules TestCopiesKeepEqualBitsWhateverArrives explores")

// packet is a pipeline's message of a round on its way to the copy of another group.
type packet struct {
	life, to, pipeline int
	round              uint64
	content            flat.Host
}

// copies are groups of pipelines, each with a copy of one shard of the center. Group g trains the pipelines that are g more than a multiple of the
// number of groups; the messages of the others come over a network that delays, repeats and reorders them.
type copies struct {
	t         *testing.T
	random    *rand.Rand
	method    Method
	pipelines int
	rounds    uint64
	life      int // grows when all go on from a snapshot: packets of an earlier one are refused
	groups    []*shell
	flying    []packet
	asked     uint64   // the round of the last snapshot that was asked for
	log       []string // what has happened
}

// TestCopiesKeepEqualBitsWhateverArrives: copies of the center at several groups have the bits of the sequential run in every round, whatever order messages
// come in, how often they do, and wherever all groups go on from a snapshot again. No update counts twice, and none is left out.
func TestCopiesKeepEqualBitsWhateverArrives(t *testing.T) {
	var names []string
	methods := map[int]map[string]Method{}
	for n := 1; n <= 4; n++ {
		methods[n] = everyMethod(t, n)
		names = slices.Sorted(maps.Keys(methods[n]))
	}
	type truth struct {
		centers map[uint64]flat.Host
		weights map[[2]uint64]flat.Host
	}
	known := map[[2]int]truth{}
	for seed := range *explored {
		random := rand.New(rand.NewPCG(uint64(seed), 95)) //nolint:gosec // not negative
		which, n := random.IntN(len(names)), 1+random.IntN(4)
		name := names[which]
		c := &copies{t: t, random: random, pipelines: n, rounds: 8, method: methods[n][name]}
		expected, ok := known[[2]int{which, n}]
		if !ok {
			expected.centers, expected.weights = sequential(c.method, c.rounds, 2, n, everyone)
			known[[2]int{which, n}] = expected
		}
		for range 1 + random.IntN(n) {
			c.groups = append(c.groups, newWildShell(t, c.method, n, 2))
		}
		if err := c.explore(); err != nil {
			t.Fatalf("seed %d, %s, %d pipelines in %d groups: %v\n%v", seed, name, n, len(c.groups), err, c.log)
		}
		for g, s := range c.groups {
			for r, center := range s.advanced {
				if err := sameBits(center, expected.centers[r]); err != nil || s.counts[r] != n {
					t.Fatalf("seed %d, %s: group %d, round %d with %d of %d updates: %v\n%v", seed, name, g, r, s.counts[r], n, err, c.log)
				}
			}
			for i := g; i < n; i += len(c.groups) {
				if err := sameBits(s.x[i], expected.weights[[2]uint64{c.rounds, uint64(i)}]); err != nil { //nolint:gosec // few
					t.Fatalf("seed %d, %s: pipeline %d: %v\n%v", seed, name, i, err, c.log)
				}
			}
		}
	}
}

// explore does what is possible, in a random order, until all groups have completed all rounds.
func (c *copies) explore() error {
	for steps := 0; ; steps++ {
		if !slices.ContainsFunc(c.groups, func(s *shell) bool { return s.center.Round() < c.rounds }) {
			return nil
		}
		if steps > 10_000 {
			return errors.New("they do not come to an end")
		}
		var err error
		switch what := c.random.IntN(20); {
		case what < 9:
			c.train(c.random.IntN(len(c.groups)))
		case what < 18:
			err = c.arrive()
		case what == 18:
			c.snapshot()
		case c.random.IntN(4) == 0:
			c.resume()
		}
		if err != nil {
			return err
		}
	}
}

// train has one of a group's own pipelines train a round, and sends its message to the others.
func (c *copies) train(g int) {
	s := c.groups[g]
	for i := g; i < c.pipelines; i += len(c.groups) {
		if s.trained[i] >= c.rounds || !s.mayTrain(i) || c.random.IntN(2) == 0 {
			continue
		}
		s.train(i, s.local(i, s.trained[i]+1, s.x[i]))
		c.log = append(c.log, fmt.Sprintf("train %d:%d", i, s.trained[i]))
		if needs := c.method.Needs(); needs.Gradients || needs.TimingOf(s.trained[i]) == After {
			c.send(g, i, s.trained[i])
		}
		actions, err := s.center.Update(i, s.trained[i])
		if err != nil {
			c.t.Fatal(err)
		}
		c.execute(g, actions)
		return
	}
}

// send sends a message of a group's own pipeline to the others.
func (c *copies) send(g, pipeline int, round uint64) {
	content := slices.Clone(c.groups[g].message(pipeline, round))
	for to := range c.groups {
		for range 1 + c.random.IntN(5)/4 { // some come twice
			if to != g {
				c.flying = append(c.flying, packet{c.life, to, pipeline, round, content})
			}
		}
	}
}

// execute does what a group's center asks for. Pipelines are pulled where they train; a pull before the merge may write the message, which is sent then.
func (c *copies) execute(g int, actions []Action) {
	for _, a := range actions {
		own := a.Pipeline%len(c.groups) == g
		if a.Kind == Pull && !own {
			continue
		}
		c.groups[g].execute([]Action{a})
		if needs := c.method.Needs(); a.Kind == Pull && !needs.Gradients && needs.TimingOf(a.Round) == Before {
			c.send(g, a.Pipeline, a.Round)
		}
	}
}

// arrive brings one of the packets to its group. Those of an earlier life are refused there, as frames of another generation are. A packet that is early
// waits; one that has come before is an error that changes nothing.
func (c *copies) arrive() error {
	if len(c.flying) == 0 {
		return nil
	}
	at := c.random.IntN(len(c.flying))
	p := c.flying[at]
	c.flying = slices.Delete(c.flying, at, at+1)
	if p.life != c.life {
		return nil
	}
	s := c.groups[p.to]
	if m := s.center.members[p.pipeline]; p.round <= m.sent {
		if !refuses(s.center, p) {
			return fmt.Errorf("message %d of pipeline %d came again at group %d, and was taken, or changed its center", p.round, p.pipeline, p.to)
		}
		return nil
	}
	if takes := s.center.check(p.pipeline, p.round) == nil; !takes {
		c.flying = append(c.flying, p) // it is early
		return nil
	}
	c.log = append(c.log, fmt.Sprintf("%d:%d at %d", p.pipeline, p.round, p.to))
	s.trained[p.pipeline] = p.round
	if c.method.Needs().Visits(p.pipeline, p.round) {
		copy(s.message(p.pipeline, p.round), p.content)
	}
	actions, err := s.center.Update(p.pipeline, p.round)
	if err != nil {
		return err
	}
	c.execute(p.to, actions)
	return nil
}

// refuses reports whether a center refuses a message that it has had, and stays as it is.
func refuses(c *Center, p packet) bool {
	m := c.members[p.pipeline]
	before := fmt.Sprint(c.done, c.counted, *m)
	_, err := c.Update(p.pipeline, p.round)
	return err != nil && before == fmt.Sprint(c.done, c.counted, *m)
}

// snapshot asks all groups for a snapshot of one round, if all can still give it.
func (c *copies) snapshot() {
	round := uint64(0)
	for _, s := range c.groups {
		round = max(round, s.center.EarliestSnapshot())
	}
	if round > c.rounds {
		return
	}
	for _, s := range c.groups {
		if _, err := s.center.Snapshot(round); err != nil {
			c.t.Fatal(err)
		}
	}
	c.asked = round
	c.log = append(c.log, fmt.Sprintf("snapshot %d", round))
}

// resume has all groups go on from the snapshot that was asked for last, if it is complete everywhere.
func (c *copies) resume() {
	round := c.asked
	for g, s := range c.groups {
		if s.snapped[round] == nil {
			return
		}
		for i := g; i < c.pipelines; i += len(c.groups) {
			if s.captured[[2]uint64{round, uint64(i)}] == nil { //nolint:gosec // few
				return
			}
		}
	}
	c.life++
	c.log = append(c.log, fmt.Sprintf("resume %d", round))
	for g, old := range c.groups {
		s := newWildShell(c.t, c.method, 0, 2)
		s.shard.Center.Copy(old.snapped[round])
		for j, v := range c.method.Needs().Kept(s.shard) {
			v.Copy(old.kept[round][j])
		}
		var members []int
		for i := range c.pipelines {
			x := old.captured[[2]uint64{round, uint64(i)}] //nolint:gosec // few
			if x == nil {
				x = flat.NewHost(2) // another group trains it
			}
			members = append(members, i)
			s.addPipeline(i, x, round)
		}
		s.start(members, round)
		s.snapped, s.kept, s.captured = old.snapped, old.kept, old.captured
		c.groups[g] = s
	}
}
