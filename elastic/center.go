package elastic

import (
	"fmt"
	"maps"
	"slices"
)

// ActionKind says what an Action asks for.
type ActionKind uint8

// The kinds of action. Package elastic's documentation shows what executes each.
const (
	Pull     ActionKind = iota + 1 // run Method.Pull on Pipeline with x~ as it is now
	Capture                        // copy Pipeline's weights and optimizer state: they belong to the snapshot of Round
	Release                        // Pipeline may go on to the first batch after Round
	Merge                          // run Method.Merge with Pipeline's message of Round; then the message is Pipeline's again
	Advance                        // run Method.Advance with Count: x~ is now that of Round
	Snapshot                       // copy x~ and the center's state: with the captures of Round, the snapshot is complete
	Admit                          // set Pipeline's weights to x~; its first batch is the first after Round
)

// Action is one thing that the owner of a shard must do, in the order given, before it hands the next input to the Center.
type Action struct {
	Kind     ActionKind
	Round    uint64
	Pipeline int  // of Pull, Capture, Release, Merge, Admit
	First    bool // of Merge: the first of its round
	Count    int  // of Advance and Snapshot: pipelines whose updates are in the round
}

// member is what the center knows of one pipeline.
type member struct {
	sent     uint64 // newest round whose message it handed over
	released uint64 // newest round it was released from
	merged   uint64 // newest round whose message is merged
}

// Center orders the rounds of one shard. It is a pure state machine: inputs are Update, Join, Leave and Snapshot, and each
// returns the actions that it causes, in the order in which they must be executed. An input that breaks the protocol is an error and
// changes nothing. A Center is not safe for concurrent use; the shard's owner serialises.
//
// # Rounds and their order
//
// Rounds count from 1; x~_r is the center after round r. Every member hands over one message a round. Messages are merged in
// ascending order of pipeline, so one that arrives early is held until those of all lower members are merged; when all are, the
// center advances. Thus x~_r = x~_{r-1} + f(messages of round r, summed in that order), whatever the order of arrival.
//
// The center that a pull sees is unique as well. With timing After, Pull{i, r} directly follows Advance{r}. With
// Before it is issued only while the last completed round is r-1: a message of round r that comes when round r-1 is still in
// progress is held, its pipeline not yet pulled. And the center cannot be past r-1, since Advance{r} comes after Merge{i, r}, which comes after
// Pull{i, r}. So Pull{i, r} always sees x~_{r-1}. Hence every x_i and x~ is a function of the initial vectors and of what
// the members computed, and no timing can change a bit. (Membership is an input: whether a leaving pipeline's last message
// counts does depend on whether it arrived before the Leave.)
//
// # Ownership of messages
//
// Update hands the message of that round to the center; its Merge hands it back. A pipeline that is released from round r
// may train on into its next message. With Needs.Buffers messages
// used in turn, the one that a released pipeline needs next is always its own: see Buffers.
//
// # Rounds without an exchange
//
// With a Needs.Period most rounds carry no message. The Center asks for the same actions in them; whoever executes them runs no rule of the center then (Needs.Exchanges), and a Pull only mixes
// (Needs.Mixes). So a round, its snapshot and who may begin it mean the same everywhere.
//
// With Needs.Turns one pipeline alone has a message in a round (Needs.Visits), and the same holds for the others.
type Center struct {
	needs     Needs
	wait      bool   // rounds have timing After whatever that of needs is
	done      uint64 // last completed round; the round in progress is done+1
	counted   int    // members merged into the round in progress
	members   map[int]*member
	joining   map[int]uint64 // pipeline -> its first round
	leaving   map[int]bool
	snapshots map[uint64]bool
}

// NewCenter starts a center for a method of such needs. round is the last completed one: 0 at the start, the committed one after a resume. The
// members are told by number, in any order; each has the weights it left the round with.
func NewCenter(needs Needs, round uint64, pipelines ...int) *Center {
	c := &Center{
		needs: needs, done: round,
		members: map[int]*member{}, joining: map[int]uint64{}, leaving: map[int]bool{}, snapshots: map[uint64]bool{},
	}
	for _, p := range pipelines {
		c.add(p)
	}
	return c
}

// Synchronize says whether the rounds after the last completed one have timing After, whatever the method's is. It is for the boundary of rounds: while messages of the next one are here
// it is an error, and changes nothing.
func (c *Center) Synchronize(on bool) error {
	if !c.atBoundary() {
		return fmt.Errorf("center: timing of round %d: messages of it are here already", c.done+1)
	}
	c.wait = on
	return nil
}

// TimingOf is the timing of a round: that in progress, or the last completed one before the next is synchronized.
func (c *Center) TimingOf(round uint64) Timing {
	if c.wait {
		return After
	}
	return c.needs.TimingOf(round)
}

// Round is the last completed round.
func (c *Center) Round() uint64 { return c.done }

// Members are the pipelines that the round in progress waits for, ascending.
func (c *Center) Members() []int { return slices.Sorted(maps.Keys(c.members)) }

// Update says that the pipeline has trained for the round and hands its message over.
func (c *Center) Update(pipeline int, round uint64) ([]Action, error) {
	if err := c.check(pipeline, round); err != nil {
		return nil, err
	}
	c.members[pipeline].sent = round
	return c.run(nil), nil
}

// Join makes the pipeline a member from the given round on. Admit, right after the round before it, says when. All shards of a
// pipeline must be told the same round, so it is the caller who names it, a little ahead. A *LateError says that the round has
// begun. A center without members stands still; only its next round can be joined.
func (c *Center) Join(pipeline int, round uint64) ([]Action, error) {
	if pipeline < 0 {
		return nil, fmt.Errorf("center: join of pipeline %d: numbers are not negative", pipeline)
	}
	if _, joins := c.joining[pipeline]; joins || (c.members[pipeline] != nil && !c.leaving[pipeline]) {
		return nil, fmt.Errorf("center: join of pipeline %d: it is a member already", pipeline)
	}
	earliest := c.done + 1
	if !c.atBoundary() {
		earliest++
	}
	if round < earliest {
		return nil, &LateError{What: "join", Round: round, Earliest: earliest}
	}
	if len(c.members) == 0 && round > earliest {
		return nil, fmt.Errorf("center: join of pipeline %d in round %d: no other member can complete a round before; join in round %d",
			pipeline, round, earliest)
	}
	c.joining[pipeline] = round
	if round == c.done+1 {
		return c.boundary(nil), nil
	}
	return nil, nil
}

// Leave ends the pipeline's membership. What it handed over before counts: with its message of the round in progress already
// here, it leaves at the end of that round; else the round goes on without it, and completes at once when nobody else is
// missing. A message held for a later round is dropped. The pipeline is not released any more.
//
// Each shard decides this by what reached it. A pipeline that died in mid-round may therefore count in one shard and not in
// another; each shard still moves by the mean of the updates it has. A loss that must not do that resumes from the last
// committed round instead.
func (c *Center) Leave(pipeline int) ([]Action, error) {
	if _, joins := c.joining[pipeline]; joins {
		delete(c.joining, pipeline)
		return nil, nil
	}
	m := c.members[pipeline]
	if m == nil || c.leaving[pipeline] {
		return nil, c.notMember(pipeline)
	}
	if m.sent >= c.done+1 {
		c.leaving[pipeline] = true
		return nil, nil
	}
	delete(c.members, pipeline)
	return c.run(nil), nil
}

// EarliestSnapshot is the earliest round whose snapshot can still be asked for: no member has been released from it.
func (c *Center) EarliestSnapshot() uint64 {
	earliest := c.done + 1
	for _, m := range c.members {
		earliest = max(earliest, m.released+1)
	}
	return earliest
}

// Snapshot asks for a consistent copy of the round: a Capture of each pipeline as it leaves the round, and a Snapshot of the center
// before the next round touches it. The round must not be earlier than EarliestSnapshot; a *LateError says so.
func (c *Center) Snapshot(round uint64) ([]Action, error) {
	if earliest := c.EarliestSnapshot(); round < earliest {
		return nil, &LateError{What: "snapshot", Round: round, Earliest: earliest}
	}
	c.snapshots[round] = true
	return nil, nil
}

// LateError reports a snapshot or a join that names a round which some pipeline has left, or begun, already.
type LateError struct {
	What            string // "snapshot" or "join"
	Round, Earliest uint64
}

func (e *LateError) Error() string {
	return fmt.Sprintf("center: %s in round %d: the pipelines are past it; the earliest possible is round %d",
		e.What, e.Round, e.Earliest)
}

func (c *Center) notMember(pipeline int) error {
	return fmt.Errorf("center: pipeline %d in round %d: not a member (members %v)", pipeline, c.done+1, c.Members())
}

// check reports why the center would not accept the message.
func (c *Center) check(pipeline int, round uint64) error {
	m := c.members[pipeline]
	if m == nil || c.leaving[pipeline] {
		return c.notMember(pipeline)
	}
	if round != m.sent+1 {
		return fmt.Errorf("center: update of pipeline %d for round %d: expected round %d", pipeline, round, m.sent+1)
	}
	if m.released != m.sent {
		return fmt.Errorf("center: update of pipeline %d for round %d: it has not been released from round %d",
			pipeline, round, m.sent)
	}
	return nil
}

// add makes the pipeline a member that stands at the last completed round.
func (c *Center) add(pipeline int) { c.members[pipeline] = &member{c.done, c.done, c.done} }

// atBoundary reports whether no message of the round in progress has come yet.
func (c *Center) atBoundary() bool {
	for _, m := range c.members {
		if m.sent > c.done {
			return false
		}
	}
	return true
}

// run appends whatever has become possible, until nothing more is.
func (c *Center) run(actions []Action) []Action {
	for {
		actions = c.releaseArrived(actions)
		actions = c.merge(actions)
		if c.counted == 0 || c.counted < len(c.members) {
			return actions
		}
		actions = c.advance(actions)
	}
}

// releaseArrived releases, with timing Before, every member whose message of the round in progress is here.
func (c *Center) releaseArrived(actions []Action) []Action {
	if c.TimingOf(c.done+1) != Before {
		return actions
	}
	for _, p := range c.Members() {
		if m := c.members[p]; m.sent == c.done+1 && m.released == c.done {
			actions = c.release(actions, p)
		}
	}
	return actions
}

// merge merges the messages of the round in progress up to the first member whose message is missing.
func (c *Center) merge(actions []Action) []Action {
	round := c.done + 1
	for _, p := range c.Members() {
		m := c.members[p]
		if m.sent < round {
			break
		}
		if m.merged < round {
			actions = append(actions, Action{Kind: Merge, Pipeline: p, Round: round, First: c.counted == 0})
			m.merged = round
			c.counted++
		}
	}
	return actions
}

// advance completes the round in progress.
func (c *Center) advance(actions []Action) []Action {
	c.done++
	count := c.counted
	c.counted = 0
	actions = append(actions, Action{Kind: Advance, Round: c.done, Count: count})
	if c.TimingOf(c.done) == After {
		for _, p := range c.Members() {
			if !c.leaving[p] {
				actions = c.release(actions, p)
			}
		}
	}
	if c.snapshots[c.done] {
		delete(c.snapshots, c.done)
		actions = append(actions, Action{Kind: Snapshot, Round: c.done, Count: count})
	}
	return c.boundary(actions)
}

// release lets one member go on from the round: in progress with timing Before, just completed with After.
func (c *Center) release(actions []Action, pipeline int) []Action {
	m := c.members[pipeline]
	m.released = m.sent
	actions = append(actions, Action{Kind: Pull, Pipeline: pipeline, Round: m.sent})
	if c.snapshots[m.sent] {
		actions = append(actions, Action{Kind: Capture, Pipeline: pipeline, Round: m.sent})
	}
	return append(actions, Action{Kind: Release, Pipeline: pipeline, Round: m.sent})
}

// boundary carries out the joins and leaves that waited for the end of a round.
func (c *Center) boundary(actions []Action) []Action {
	for p := range c.leaving {
		delete(c.members, p)
	}
	clear(c.leaving)
	for _, p := range slices.Sorted(maps.Keys(c.joining)) {
		if c.joining[p] != c.done+1 {
			continue
		}
		delete(c.joining, p)
		c.add(p)
		actions = append(actions, Action{Kind: Admit, Pipeline: p, Round: c.done})
	}
	return actions
}
