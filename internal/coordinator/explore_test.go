package coordinator

import (
	"flag"
	"fmt"
	"maps"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/avgpipe/avgpipe/internal/cluster"
	"github.com/avgpipe/avgpipe/internal/shard"
	"github.com/avgpipe/avgpipe/internal/spec"
	"github.com/avgpipe/avgpipe/job"
)

var (
	schedules     = flag.Uint64("schedules", 300, "how many schedules TestWhateverTheSchedule explores")
	firstSchedule = flag.Uint64("first-schedule", 1, "the seed of the first of them")
)

// When a run becomes calm, and when it is given up.
const (
	simCalm = 11 * time.Second
	simEnd  = 5 * time.Minute
)

// admitted are the jobs of schedules: a text, and what coordinators have read of it.
var admitted sync.Map

// jobOf is what was admitted as the jobs of a schedule.
type jobOf struct {
	text []byte
	read spec.Cache
}

func (s *drill) spec() *jobOf {
	key := [4]uint64{uint64(s.stages), uint64(s.replicas), s.rounds, s.every} //nolint:gosec // few
	if j, ok := admitted.Load(key); ok {
		return j.(*jobOf)
	}
	j, _ := admitted.LoadOrStore(key, &jobOf{text: s.specOf()})
	return j.(*jobOf)
}

// specOf is the text of a job of a schedule.
func (s *drill) specOf() []byte {
	j := *job.Default()
	j.Name, j.Stages, j.Pipelines, j.MicroBatches, j.Train.Batch, j.Schedule = "explored", job.Count(s.stages), 1, 1, simBatch, "1f1b"
	j.Averaging.Tau = 1
	j.Model.Family, j.Train.Steps, j.Devices.CPU.Threads = "gpt2", int(s.rounds), 1 //nolint:gosec // few
	j.Center.CommitEvery, j.Center.Replicas = int(s.every), s.replicas              //nolint:gosec // few
	j.Model.Config = map[string]any{"vocab_size": 16, "n_positions": 4, "n_embd": 4, "n_layer": 1, "n_head": 1}
	text, err := spec.Encode(&spec.Spec{Version: spec.Version, Job: j, Budget: &job.Budget{Steps: s.rounds, Samples: simBatch * s.rounds}})
	if err != nil {
		panic(err)
	}
	return text
}

// run runs a schedule, and returns what was wrong; "" where nothing was.
func (s *drill) run(noted account, followed bool) (violation, text string) {
	w := &world{simulation: newSimulation(), drill: s, state: cluster.NewState(), changed: make(chan struct{}), said: map[message]int{}, account: noted}
	defer w.close()
	w.check = &checker{w: w, begun: map[string]*cluster.Manifest{}, useless: map[*trainer]time.Duration{}}
	if followed {
		w.check.follower = cluster.NewState()
	}
	for i := range s.nodes {
		w.nodes = append(w.nodes, &simNode{name: string(rune('a' + i)), up: true, daemon: true, shards: map[shard.Digest]*keptShard{}}) //nolint:gosec // few
	}
	for range s.jobs {
		_, _ = w.apply(&cluster.SubmitJob{Name: "explored", Spec: s.spec().text, Submitted: epoch})
	}
	w.elect(w.nodes[0])
	for _, one := range s.strikes {
		w.after(one.at, func() {
			w.mark("%s %c", one.what, 'a'+rune(one.node)) //nolint:gosec // few
			if undo := strikes[one.what](w, w.nodes[one.node]); undo != nil {
				w.after(one.last, undo)
			}
		})
	}
	over := false
	var look func()
	look = func() {
		w.lead()
		w.calm = w.at >= simCalm
		over = w.check.look() && (w.calm || !s.ahead(w.at))
		w.after(simElection/2, look)
	}
	w.after(simElection/2, look)
	for more := true; more && !over && w.check.violation == ""; {
		more = w.step(simEnd)
	}
	if !over {
		w.check.end()
	}
	return w.check.violation, w.notes.String()
}

// ahead reports whether a strike is to come.
func (s *drill) ahead(now time.Duration) bool {
	return slices.ContainsFunc(s.strikes, func(one strike) bool { return one.at+one.last >= now })
}

// TestWhateverTheSchedule drives coordinators, the replicated state and simulated workers through schedules of messages that are lost, come twice, late or
// in another order, of nodes that crash, hang and come back, and of leaders that change. Each run is one seed; one that breaks something is made shorter
// and printed as a scenario for testdata/schedules.
func TestWhateverTheSchedule(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(400))
	var next, bad atomic.Uint64
	next.Store(*firstSchedule)
	end := *firstSchedule + *schedules
	began := time.Now()
	var all sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		all.Go(func() {
			for seed := next.Add(1) - 1; seed < end && bad.Load() < 3; seed = next.Add(1) - 1 {
				s := draw(seed)
				hangs := time.AfterFunc(hangsAfter, func() { panic(fmt.Sprintf("schedule %d hangs", seed)) })
				violation, _ := s.run(silent, seed%16 == 0)
				hangs.Stop()
				if n := seed - *firstSchedule; n > 0 && n%100_000 == 0 {
					t.Logf("%d schedules in %v", n, time.Since(began).Round(time.Second))
				}
				if violation != "" && bad.Add(1) <= 3 {
					t.Errorf("schedule %d: %s\n%s", seed, violation, shrink(s))
				}
			}
		})
	}
	all.Wait()
	t.Logf("%d schedules in %v", min(next.Load(), end)-*firstSchedule, time.Since(began).Round(time.Millisecond))
}

// hangsAfter is how long a schedule may take, of which a core does hundreds a second.
const hangsAfter = 2 * time.Minute

// shrink leaves out of a schedule that breaks something whatever it breaks without, and writes it as a scenario.
func shrink(s *drill) string {
	s.random = nil
	breaks := func(s *drill) bool {
		violation, _ := s.run(silent, false)
		return violation != ""
	}
	if !breaks(s) {
		return "it does not break again without its random numbers:\n" + s.String()
	}
	for again := true; again; {
		again = false
		for i := 0; i < len(s.strikes); i++ {
			less := *s
			less.strikes = slices.Delete(slices.Clone(s.strikes), i, i+1)
			if breaks(&less) {
				*s, again = less, true
				i--
			}
		}
		for _, m := range slices.Collect(maps.Keys(s.fates)) {
			less := *s
			less.fates = maps.Clone(s.fates)
			delete(less.fates, m)
			if breaks(&less) {
				*s, again = less, true
			}
		}
		for _, smaller := range []func(*drill){
			func(s *drill) { s.jobs = 1 }, func(s *drill) { s.learn = 0 }, func(s *drill) { s.replicas = 1 }, func(s *drill) { s.rounds = s.every + 1 },
		} {
			less := *s
			smaller(&less)
			if less.String() != s.String() && breaks(&less) {
				*s, again = less, true
			}
		}
	}
	_, text := s.run(full, false)
	return fmt.Sprintf("schedule\n%s----\n%s", s, text)
}

// TestSchedules runs the scenarios of testdata/schedules. Each is a schedule that broke something once, and prints what happens in it now.
func TestSchedules(t *testing.T) {
	datadriven.Walk(t, "testdata/schedules", func(t *testing.T, path string) {
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			s, err := readSchedule(d.Input)
			if err != nil {
				t.Fatalf("%s: %v", d.Pos, err)
			}
			violation, text := s.run(brief, true)
			if violation != "" {
				t.Errorf("%s: %s", d.Pos, violation)
			}
			return text
		})
	})
}

// TestSchedulesAreRepeatable: one seed gives one run, on however busy a machine, and it is read as it is written.
func TestSchedulesAreRepeatable(t *testing.T) {
	for seed := range uint64(100) {
		s := draw(seed)
		_, first := s.run(full, false)
		s.random = nil
		again, err := readSchedule(s.String())
		if err != nil {
			t.Fatal(err)
		}
		if _, second := again.run(full, false); first != second {
			t.Fatalf("seed %d:\n%s\nand then\n%s", seed, first, second)
		}
		if !strings.Contains(first, "commit_round") && seed == 0 {
			t.Errorf("nothing was committed:\n%s", first)
		}
	}
}
