package coordinator

import (
	"cmp"
	"slices"
	"time"

	"github.com/avgpipe/avgpipe/internal/agent"
	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/drift"
	"github.com/avgpipe/avgpipe/internal/shard"
	"github.com/avgpipe/avgpipe/internal/worker/control"
)

// generation is what was seen of one placement of a job: a worker on each of its nodes, which train and end together, and what they have
// done together.
type generation struct {
	workers []*worker       // in the order of their first stages; none: none was started here
	status  *control.Status // of all of them (joined); nil: none has said anything yet

	abortedAt time.Time // when they were told to end
	killed    string    // why they were killed here
	cause     string    // why they have ended
	permanent bool      // the next ones would end as well

	rounds  []sighting                // recent ones, oldest first
	shards  map[uint64]map[int]stored // by round, and by group of pipelines and stage as a manifest lists them
	copies  map[shard.Digest]*copies  // of the shards of the pending round
	wholeAt time.Time                 // when all of those had been reported; zero: not yet
	heard   time.Time                 // of the last of those, or of its copies
	posted  uint64                    // the round that all have accepted to commit
	unseen  uint64                    // the round of which nobody can look at a shard, as its node does not answer
	stopAt  uint64                    // the round where they were told to end
	refused map[uint64]uint64         // by round: the earliest one that was offered instead
	offered uint64                    // the last one of those, while no answer has come since; 0: none
	passed  uint64                    // rounds that could be named no more when the answer to the next question came
	reached time.Time                 // when the posted round was seen to be reached; zero: not yet

	faults   int       // commits that failed since the last one that did not
	fault    string    // why the last of them did; "" when none has
	commitAt time.Time // no other is begun before, unless somebody waits for it

	drift     drift.Watch
	comparing bool // with its prediction, in the background
}

// stored is a durable shard, and the node that has it.
type stored struct {
	control.ShardInfo
	node string
}

// sighting is a round that was seen at a time.
type sighting struct {
	at    time.Time
	round uint64
}

// speedWindow is how far back the speed of a job is measured.
const speedWindow = 5 * time.Second

// newGeneration begins the account of workers.
func newGeneration(workers ...*worker) generation {
	return generation{workers: workers, shards: map[uint64]map[int]stored{}, refused: map[uint64]uint64{}, copies: map[shard.Digest]*copies{}}
}

// find returns the worker that a process is; nil: it is none of this generation.
func (g *generation) find(p agent.Process) *worker {
	for _, w := range g.with(func(w *worker) bool { return w.process == p }) {
		return w
	}
	return nil
}

// with are the workers of which something holds.
func (g *generation) with(holds func(*worker) bool) []*worker {
	return slices.DeleteFunc(slices.Clone(g.workers), func(w *worker) bool { return !holds(w) })
}

// phase is that of the worker that is the least far.
func (g *generation) phase() phase { return g.least().phase }

// noWorkers stands for those of a job that has none. Nobody changes it.
var noWorkers worker

// least is the worker that is the least far.
func (g *generation) least() *worker {
	if len(g.workers) == 0 {
		return &noWorkers
	}
	return slices.MinFunc(g.workers, func(a, b *worker) int { return cmp.Compare(a.phase, b.phase) })
}

// lives reports whether there is a worker that has not ended.
func (g *generation) lives() bool { return g.least().lives() }

// living are the workers that have not ended.
func (g *generation) living() []*worker { return g.with((*worker).lives) }

// gone is the worker whose end says most of why the generation cannot go on; nil while all live.
func (g *generation) gone() *worker {
	gone := g.with(func(w *worker) bool { return w.phase == exited })
	if len(gone) == 0 {
		return nil
	}
	return slices.MinFunc(gone, func(a, b *worker) int { return cmp.Or(b.telling()-a.telling(), a.ended.Compare(b.ended)) })
}

// of says which worker is meant, for people.
func (g *generation) of(w *worker) string {
	if len(g.workers) == 1 {
		return ""
	}
	return " on " + w.process.Node
}

// abort notes that all workers were told to end.
func (g *generation) abort(now time.Time) {
	g.abortedAt = now
	for _, w := range g.living() {
		w.phase = aborted
	}
}

// take notes an event of a worker of the generation.
func (o *observed) take(w *worker, e agent.Event, now time.Time) {
	w.hear(now)
	if e.Silent > 0 {
		w.polls, w.silent = w.polls+1, w.silent+e.Silent
		return
	}
	w.polls, w.silent = 0, 0
	switch {
	case e.Status != nil:
		w.takeStatus(e.Status)
		w.move(e.Status.Progress.Step, now)
		o.takeProgress(now)
	case e.Worker != nil && e.Worker.Shard != nil:
		if o.shards[e.Worker.Round] == nil {
			o.shards[e.Worker.Round] = map[int]stored{}
		}
		s := e.Worker.Shard
		o.shards[e.Worker.Round][s.Group*o.spec.Stages()+s.Stage] = stored{*s, w.process.Node}
		o.heard = now
	case e.Worker != nil:
		w.takeEvent(e.Worker)
		o.status = joined(o.workers)
	case e.Exit != nil:
		w.takeExit(e.Exit, o.killed, now)
		o.settle(now)
	}
}

// takeProgress notes how far the workers are together.
func (o *observed) takeProgress(now time.Time) {
	o.status = joined(o.workers)
	o.rounds = append(o.rounds, sighting{now, o.round()})
	for now.Sub(o.rounds[0].at) > speedWindow {
		o.rounds = o.rounds[1:]
	}
	if p := o.phase(); p == training || p == finished {
		o.hold = nil
	}
	if o.posted > 0 && o.reached.IsZero() && o.round() >= o.posted {
		o.reached = now
	}
}

// settle notes why the generation has ended, once its last worker has.
func (o *observed) settle(now time.Time) {
	if o.lives() {
		return
	}
	if o.ended() {
		o.notBefore = time.Time{} // the pause was to ask them again
	}
	w := o.gone()
	o.cause, o.permanent = w.cause, w.permanent()
	if len(o.workers) > 1 && w.cause != o.killed {
		o.cause = w.process.Node + ": " + w.cause
	}
	if w.obstacle != nil {
		o.waitFor(w.obstacle, w.process.Node, now)
		return
	}
	o.hold = nil
	if w.died && o.sick == "" { // else the worker may be well
		o.die(now)
	}
}

// ended reports whether the last act was to end the workers, and none of them lives: nothing of it is left to be done.
func (o *observed) ended() bool {
	return (o.choice == abortWorkers || o.choice == killWorkers) && !o.lives()
}

// joined is what the workers of a job say together; nil while none has said anything. The job is where the slowest of them is. What is
// known of the job as a whole, such as the loss of its center, the first worker says that has a last stage. Each group of pipelines has one, which knows how
// fast its pipelines are and how they do.
func joined(workers []*worker) *control.Status {
	said := slices.DeleteFunc(slices.Clone(workers), func(w *worker) bool { return w.status == nil })
	if len(said) == 0 {
		return nil
	}
	of := slices.MaxFunc(said, func(a, b *worker) int { return cmp.Compare(a.lastStage(), b.lastStage()) })
	out, last := *of.status, of.lastStage()
	p := &out.Progress
	p.StageStatus, p.LinkStatus, p.HostBytes, p.TokensPerS = nil, nil, 0, 0
	var losses []*float64
	p.CriticalBatch = nil
	for _, w := range said {
		s := w.status
		if w.lastStage() == last {
			losses, p.TokensPerS = append(losses, s.Progress.Loss), p.TokensPerS+s.Progress.TokensPerS
		}
		out.Final, out.NextCommit, out.Held = min(out.Final, w.endsAt()), max(out.NextCommit, s.NextCommit), cmp.Or(out.Held, s.Held)
		p.Step, p.Round, p.SamplesSeen = min(p.Step, s.Progress.Step), min(p.Round, s.Progress.Round), min(p.SamplesSeen, s.Progress.SamplesSeen)
		p.HostBytes += s.Progress.HostBytes
		p.CriticalBatch = cmp.Or(p.CriticalBatch, s.Progress.CriticalBatch)
		p.StageStatus, p.LinkStatus = append(p.StageStatus, s.Progress.StageStatus...), append(p.LinkStatus, s.Progress.LinkStatus...)
	}
	p.Loss = mean(losses)
	slices.SortFunc(p.StageStatus, func(a, b api.StageStatus) int {
		return cmp.Or(cmp.Compare(a.Group, b.Group), cmp.Compare(a.Stage, b.Stage))
	})
	p.LinkStatus = joinedLinks(p.LinkStatus)
	return &out
}

// joinedLinks puts together what two workers say of a link between them: each says how long the messages take that arrive at it.
func joinedLinks(said []api.LinkStatus) (all []api.LinkStatus) {
	slices.SortStableFunc(said, func(a, b api.LinkStatus) int {
		return cmp.Or(cmp.Compare(a.Group, b.Group), cmp.Compare(a.Link, b.Link))
	})
	for _, l := range said {
		if len(all) == 0 || all[len(all)-1].Group != l.Group || all[len(all)-1].Link != l.Link {
			all = append(all, l)
			continue
		}
		one := &all[len(all)-1]
		one.DownS, one.UpS, one.Network = cmp.Or(one.DownS, l.DownS), cmp.Or(one.UpS, l.UpS), cmp.Or(one.Network, l.Network)
	}
	return all
}

// mean is that of the losses that are known; nil where none is.
func mean(losses []*float64) *float64 {
	known := slices.DeleteFunc(losses, func(l *float64) bool { return l == nil })
	switch len(known) {
	case 0:
		return nil
	case 1:
		return known[0]
	}
	sum := 0.0
	for _, l := range known {
		sum += *l
	}
	sum /= float64(len(known))
	return &sum
}

// forget drops what was reported of the commit of a round.
func (g *generation) forget(round uint64) {
	delete(g.shards, round)
	clear(g.copies)
	g.wholeAt = time.Time{}
	accept(g.workers, 0)
	if g.posted == round {
		g.posted, g.reached = 0, time.Time{}
	}
}

// speed is how many rounds a second the job completes; 0 while that is not known.
func (g *generation) speed() float64 {
	if len(g.rounds) < 2 {
		return 0
	}
	first, last := g.rounds[0], g.rounds[len(g.rounds)-1]
	if last.round <= first.round || !last.at.After(first.at) {
		return 0
	}
	return float64(last.round-first.round) / last.at.Sub(first.at).Seconds()
}

// round is the center's, as far as the workers have said.
func (g *generation) round() uint64 {
	if g.status == nil {
		return 0
	}
	return g.status.Progress.Round
}

// lastRound is the round where training ends, as far as the workers have said.
func (g *generation) lastRound() uint64 {
	if g.status == nil {
		return 0
	}
	return g.status.Final
}

// endsAfter is a worker that trains on after a round, as far as it has said; nil: none does.
func (g *generation) endsAfter(round uint64) *worker {
	for _, w := range g.workers {
		if w.endsAt() > round {
			return w
		}
	}
	return nil
}

// earliest is the earliest round that a commit can name. What a worker refused is newer than its status: without it, the same round would
// be asked for again and again.
func (g *generation) earliest() (round uint64) {
	if g.status != nil {
		round = g.status.NextCommit
	}
	for _, offered := range g.refused {
		round = max(round, offered)
	}
	return round
}

// refuse notes that a worker has refused to commit a round, and offers another one.
func (g *generation) refuse(round, earliest uint64) {
	earliest = max(earliest, 1)
	g.answer(earliest)
	g.refused[round], g.offered = earliest, earliest
}

// agree notes that the first worker has accepted to commit a round, when the earliest that it could commit was another one.
func (g *generation) agree(earliest uint64) {
	if g.offered == 0 { // what was known then was older than an answer, and yet new enough
		g.passed /= 2
	}
	g.answer(earliest)
	g.offered = 0
}

// answer measures how many rounds pass from one answer to the next one: what a cluster takes to tell workers of a round, whatever it is busy with.
func (g *generation) answer(earliest uint64) {
	if g.offered > 0 {
		g.passed = max(earliest, g.offered) - g.offered
	}
}

// ahead is how many rounds a commit is named ahead of what is known: those of the margin, or twice what passed when that was measured last. A constant would be too little for a cluster
// that is slower than it: each round would be past when the workers hear of it, and none ever committed.
func (g *generation) ahead() uint64 { return max(g.within(margin), 2*g.passed) }

// complete reports whether every optimizer step that the job asks for is done.
func (g *generation) complete() bool {
	return g.status != nil && g.status.Progress.Steps > 0 && g.status.Progress.Step >= g.status.Progress.Steps
}

// loadingFor is how long the slowest worker has loaded.
func (g *generation) loadingFor() (longest time.Duration) {
	for _, w := range g.workers {
		longest = max(longest, w.loadingFor)
	}
	return longest
}
