package accounting_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/avgpipe/avgpipe/internal/accounting"
	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/cluster"
	"github.com/avgpipe/avgpipe/internal/data"
	"github.com/avgpipe/avgpipe/internal/shard"
)

const batch, tau, epoch = 3, 2, 50

// life is a job that lives through commits, losses and resumes, beside what stands behind each of its rounds, counted one sample at a time.
type life struct {
	t         *testing.T
	state     *cluster.State
	index     uint64
	pipelines int
	behind    map[uint64][]uint64 // by round: the samples that its weights have seen, in the order of training
}

func (l *life) apply(c cluster.Command) error {
	l.index++
	next, _, err := l.state.Apply(l.index, c)
	l.state = next
	return err
}

func (l *life) must(c cluster.Command) {
	l.t.Helper()
	if err := l.apply(c); err != nil {
		l.t.Fatal(err)
	}
}

func (l *life) job() *cluster.Job {
	j, err := l.state.Job("1")
	if err != nil {
		l.t.Fatal(err)
	}
	return j
}

// place begins a generation.
func (l *life) place() {
	j := l.job()
	l.must(&cluster.BeginGeneration{Job: "1", Generation: j.Generation, From: j.CommittedRound()})
}

// commit trains some rounds and commits the last of them, as workers do: they count from the round that their generation restored.
func (l *life) commit(rounds uint64, restored *cluster.Manifest) {
	j := l.job()
	var base, from uint64
	if restored != nil {
		base, from = restored.SamplesSeen, restored.Round
	}
	was := j.CommittedRound()
	seen := slices.Clone(l.behind[was])
	for step := was * tau; step < (was+rounds)*tau; step++ {
		for p := range l.pipelines {
			for i := range batch {
				c := data.Cursor{Pipeline: p, Pipelines: l.pipelines, Batch: batch, Step: step, Base: base, Since: from * tau}
				seen = append(seen, c.Position(i))
			}
		}
	}
	round := was + rounds
	l.behind[round] = seen
	m := cluster.Manifest{
		Job: "1", Generation: j.Generation, Round: round, Stages: 1, SamplesSeen: base + (round-from)*tau*batch*uint64(l.pipelines),
		Shards: []cluster.ShardRef{{Digest: shard.Digest(strings.Repeat("a", 64)), Bytes: 1, Nodes: []string{"a"}}},
	}
	for p := range l.pipelines {
		m.Cursors = append(m.Cursors, shard.Cursor{Pipeline: p, Step: round * tau})
	}
	l.must(&cluster.BeginCommit{Job: "1", Generation: j.Generation, Round: round})
	l.must(&cluster.CommitRound{Job: "1", Generation: j.Generation, Round: round, Manifest: m, Keep: 3})
}

// live draws what happens to a job.
func (l *life) live(r *rand.Rand, events int) {
	l.must(&cluster.SubmitJob{Name: "job"})
	l.place()
	var restored *cluster.Manifest
	for range events {
		j := l.job()
		switch r.IntN(6) {
		default:
			l.commit(1+r.Uint64N(4), restored)
			continue
		case 0: // a worker is lost, with what was trained since the last commit
		case 1: // the newest round turns out to be damaged
			if j.CommittedRound() > 0 && len(j.Committed) > 1 {
				l.must(&cluster.DiscardRound{Job: "1", Generation: j.Generation, Round: j.CommittedRound()})
			}
		case 2: // somebody resumes from an older round, with other counts
			l.must(&cluster.CancelJob{Job: "1", At: time.Unix(0, 0)})
			c := &cluster.ResumeJob{Job: "1", Generation: j.Generation, Spec: json.RawMessage(`{}`), FromStart: len(j.Committed) == 0}
			if n := len(j.Committed); n > 0 && r.IntN(2) == 0 {
				c.Round = j.Committed[r.IntN(n)].Round
			}
			l.must(c)
			l.pipelines = 1 + r.IntN(4)
		}
		l.place()
		restored = l.job().LastCommitted()
	}
}

// behindOf lists the samples that an account has of the last round.
func behindOf(a *api.Accounting) (all []uint64) {
	for i := range a.Stretches {
		s := &a.Stretches[i]
		for _, p := range s.Pipelines {
			for step := range s.Steps {
				for i := range s.Batch {
					all = append(all, p.First+step*p.Stride+i)
				}
			}
		}
	}
	return all
}

// TestWhateverHappensEachSampleStandsBehindARoundOnce: the account of a random life lists the samples that were counted one at a time, and these
// are all from the first on.
func TestWhateverHappensEachSampleStandsBehindARoundOnce(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 1))
		l := &life{t: t, state: cluster.NewState(), pipelines: 1 + r.IntN(4), behind: map[uint64][]uint64{}}
		l.live(r, 60)
		j := l.job()
		a := accounting.Audit(j, epoch)
		counted := slices.Sorted(slices.Values(l.behind[j.CommittedRound()]))
		accounted := slices.Sorted(slices.Values(behindOf(&a)))
		if !a.Exact || len(a.Faults) > 0 || a.Checked != a.Batches || a.Round != j.CommittedRound() {
			t.Fatalf("seed %d: round %d of %d, exact %v, faults %v, %d of %d batches", seed, a.Round, j.CommittedRound(), a.Exact, a.Faults, a.Checked, a.Batches)
		}
		if !slices.Equal(accounted, counted) || uint64(len(counted)) != a.Samples {
			t.Fatalf("seed %d: %d samples are accounted for, %d were counted, the round says %d", seed, len(accounted), len(counted), a.Samples)
		}
		for i, sample := range counted {
			if sample != uint64(i) {
				t.Fatalf("seed %d: sample %d is in the place of %d", seed, sample, i)
			}
		}
	}
}

func TestALongLineageIsJoined(t *testing.T) {
	l := &life{t: t, state: cluster.NewState(), pipelines: 2, behind: map[uint64][]uint64{}}
	l.must(&cluster.SubmitJob{Name: "job"})
	for range 400 {
		l.place()
		l.commit(1, l.job().LastCommitted())
	}
	j := l.job()
	if n := len(j.Lineage); n > 300 {
		t.Errorf("%d stretches are kept", n)
	}
	if a := accounting.Audit(j, 0); !a.Exact || a.Samples != 400*tau*batch*2 || a.Stretches[0].Begin != nil {
		t.Errorf("%d samples, faults %v", a.Samples, a.Faults)
	}
}

func TestWhatIsNotExactIsSaid(t *testing.T) {
	good := func() *cluster.Job {
		m := &cluster.Manifest{Round: 5, SamplesSeen: 60, Cursors: []shard.Cursor{{Step: 10}, {Pipeline: 1, Step: 10}}}
		return &cluster.Job{ID: "1", Committed: []*cluster.Manifest{m}, Lineage: []cluster.Stretch{
			{Generation: 1, ToRound: 2, ToStep: 4, ToSample: 24, Pipelines: 2},
			{Generation: 2, FromRound: 2, ToRound: 5, FromStep: 4, ToStep: 10, FromSample: 24, ToSample: 60, Pipelines: 2},
		}}
	}
	if a := accounting.Audit(good(), 50); !a.Exact || *a.Stretches[1].End != (api.SamplePlace{Epoch: 1, Index: 9}) {
		t.Fatalf("faults %v, ends at %+v", a.Faults, a.Stretches[1].End)
	}
	for want, change := range map[string]func(j *cluster.Job){
		"samples 24 to 29 stand behind no round":   func(j *cluster.Job) { j.Lineage[1].FromSample = 30 },
		"samples 18 to 23 stand behind two rounds": func(j *cluster.Job) { j.Lineage[1].FromSample = 18 },
		"goes on from round 3":                     func(j *cluster.Job) { j.Lineage[1].FromRound = 3 },
		"are not 6 steps of 2 pipelines":           func(j *cluster.Job) { j.Lineage[1].ToSample = 61 },
		"has trained on nothing":                   func(j *cluster.Job) { j.Lineage[1].Pipelines = 0 },
		"says 72 samples":                          func(j *cluster.Job) { j.Committed[0].SamplesSeen = 72 },
		"pipeline 1 stands at step 9":              func(j *cluster.Job) { j.Committed[0].Cursors[1].Step = 9 },
		"ends at round 0, 0 samples":               func(j *cluster.Job) { j.Lineage = nil },
	} {
		j := good()
		change(j)
		a := accounting.Audit(j, 50)
		if a.Exact || !strings.Contains(fmt.Sprint(a.Faults), want) {
			t.Errorf("exact %v, faults %v; expected %q", a.Exact, a.Faults, want)
		}
	}
	if a := accounting.Audit(&cluster.Job{ID: "1"}, 0); !a.Exact || a.Round != 0 {
		t.Errorf("of a job without a round: %+v", a)
	}
}
