package elastic

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
)

// explore calls visit for every interleaving of the pipelines' rounds: each sequence of pipelines in which every step is a round
// that the center would accept, until all have trained for the given rounds. build makes the shell that a sequence starts
// from, and at(shell, position) is called before each step and at the end.
func explore(build func() *shell, rounds uint64, pipelines int, at func(s *shell, position int), visit func(s *shell, sequence []int)) int {
	count := 0
	var extend func(prefix []int)
	extend = func(prefix []int) {
		s := build()
		for p, i := range prefix {
			at(s, p)
			if s.center.check(i, s.trained[i]+1) == nil {
				s.update(i)
			}
		}
		at(s, len(prefix))
		ends := true
		for i := range pipelines {
			if s.trained[i] < rounds && s.mayTrain(i) {
				ends = false
				extend(append(slices.Clip(prefix), i))
			}
		}
		if ends {
			count++
			visit(s, prefix)
		}
	}
	extend(nil)
	return count
}

// smallCases are the cases that are explored in full: three pipelines over the given rounds, fewer over one more.
func smallCases(t *testing.T, roundsOfThree uint64, test func(t *testing.T, m Method, pipelines int, rounds uint64)) {
	t.Helper()
	for _, pull := range []PullRule{PullPredicted, PullNew, PullOld, PullElastic} {
		for n := 1; n <= 3; n++ {
			rounds := roundsOfThree
			if n < 3 {
				rounds++
			}
			t.Run(fmt.Sprintf("%s/n=%d", pull, n), func(t *testing.T) {
				test(t, newMethod(t, Config{Pull: pull, Pipelines: n}), n, rounds)
			})
		}
	}
}

// expectAll compares every center and the final weights with the sequential run.
func expectAll(s *shell, what string, rounds uint64, m Method, pipelines int, member func(int, uint64) bool) {
	s.t.Helper()
	centers, weights := sequential(m, rounds, s.n, pipelines, member)
	for r := uint64(1); r <= s.center.Round(); r++ {
		if s.advanced[r] == nil {
			continue // before a resume
		}
		if err := sameBits(s.advanced[r], centers[r]); err != nil {
			s.t.Fatalf("%s: center of round %d: %v", what, r, err)
		}
	}
	for i := range pipelines {
		if s.released[i] == 0 || !member(i, s.released[i]) {
			continue
		}
		if err := sameBits(s.x[i], weights[[2]uint64{s.released[i], uint64(i)}]); err != nil {
			s.t.Fatalf("%s: pipeline %d after round %d: %v", what, i, s.released[i], err)
		}
	}
}

func everyone(int, uint64) bool { return true }

// TestEveryInterleavingGivesTheSameBits explores all interleavings of up to three pipelines over three rounds: all end, with the
// bits of the sequential run.
func TestEveryInterleavingGivesTheSameBits(t *testing.T) {
	smallCases(t, 3, func(t *testing.T, m Method, pipelines int, rounds uint64) {
		build := func() *shell { return newWildShell(t, m, pipelines, 4) }
		count := explore(build, rounds, pipelines, func(*shell, int) {}, func(s *shell, sequence []int) {
			if s.center.Round() != rounds {
				t.Fatalf("%v: nothing can go on after round %d of %d", sequence, s.center.Round(), rounds)
			}
			expectAll(s, fmt.Sprint(sequence), rounds, m, pipelines, everyone)
		})
		if pipelines == 3 && count < 200 {
			t.Errorf("only %d interleavings", count)
		}
	})
}

// TestDriftIsBoundedByOneRound: in no interleaving does a pipeline get released from a round more than one ahead of the
// center, and with pull: old it never needs a third message.
func TestDriftIsBoundedByOneRound(t *testing.T) {
	smallCases(t, 2, func(t *testing.T, m Method, pipelines int, rounds uint64) {
		ahead := uint64(0)
		build := func() *shell { return newWildShell(t, m, pipelines, 1) }
		explore(build, rounds, pipelines, func(s *shell, _ int) {
			for i := range pipelines {
				if s.released[i] > s.center.Round() {
					ahead = max(ahead, s.released[i]-s.center.Round())
				}
			}
		}, func(*shell, []int) {})
		expected := uint64(0)
		if m.Needs().Timing == Before && pipelines > 1 {
			expected = 1
		}
		if ahead != expected {
			t.Errorf("pipelines get %d rounds ahead of the center, expected %d", ahead, expected)
		}
	})
}

// TestSnapshotIsAConsistentCut: wherever a snapshot is asked for, in every interleaving, it holds x~ of its round and every
// pipeline as it left the round; and going on from it gives the bits of never having stopped.
func TestSnapshotIsAConsistentCut(t *testing.T) {
	smallCases(t, 2, func(t *testing.T, m Method, pipelines int, rounds uint64) {
		centers, weights := sequential(m, rounds, 4, pipelines, everyone)
		for position := range int(rounds) * pipelines {
			asked := uint64(0)
			build := func() *shell { asked = 0; return newWildShell(t, m, pipelines, 4) }
			explore(build, rounds, pipelines, func(s *shell, p int) {
				if p != position {
					return
				}
				asked = s.center.EarliestSnapshot()
				var late *LateError
				if _, err := s.center.Snapshot(asked - 1); !errors.As(err, &late) || late.Earliest != asked {
					t.Fatalf("snapshot of round %d: %v, expected a LateError that names %d", asked-1, err, asked)
				}
				if _, err := s.center.Snapshot(asked); err != nil {
					t.Fatal(err)
				}
			}, func(s *shell, sequence []int) {
				if asked == 0 || asked > rounds {
					return
				}
				if err := sameBits(s.snapped[asked], centers[asked]); err != nil {
					t.Fatalf("%v: snapshot of round %d: center: %v", sequence, asked, err)
				}
				for i := range pipelines {
					if err := sameBits(s.captured[[2]uint64{asked, uint64(i)}], weights[[2]uint64{asked, uint64(i)}]); err != nil {
						t.Fatalf("%v: snapshot of round %d: pipeline %d: %v", sequence, asked, i, err)
					}
				}
				resume(s, m, asked, rounds, pipelines)
			})
		}
	})
}

// resume goes on from a snapshot and compares the end.
func resume(from *shell, m Method, round, rounds uint64, pipelines int) {
	from.t.Helper()
	s := newWildShell(from.t, m, 0, from.n)
	s.shard.Center.Write(from.snapped[round], 0)
	var members []int
	for i := range pipelines {
		members = append(members, i)
		s.addPipeline(i, from.captured[[2]uint64{round, uint64(i)}], round)
	}
	s.start(members, round)
	for s.center.Round() < rounds {
		for i := range pipelines {
			if s.mayTrain(i) {
				s.update(i)
			}
		}
	}
	expectAll(s, fmt.Sprintf("resumed from round %d", round), rounds, m, pipelines, everyone)
}

// TestLeaveInMidRoundLetsTheOthersComplete: wherever the last pipeline leaves, in every interleaving, the round completes with
// the remaining ones, and what the leaving one had handed over for the round in progress counts.
func TestLeaveInMidRoundLetsTheOthersComplete(t *testing.T) {
	smallCases(t, 2, func(t *testing.T, m Method, pipelines int, rounds uint64) {
		if pipelines == 1 {
			return
		}
		leaver := pipelines - 1
		for position := range int(rounds) * pipelines {
			last := rounds // the last round in which the leaver counts
			build := func() *shell { last = rounds; return newWildShell(t, m, pipelines, 4) }
			explore(build, rounds, pipelines, func(s *shell, p int) {
				if p != position {
					return
				}
				last = min(s.trained[leaver], s.center.Round()+1)
				actions, err := s.center.Leave(leaver)
				if err != nil {
					t.Fatal(err)
				}
				s.execute(actions)
			}, func(s *shell, sequence []int) {
				if s.center.Round() != rounds {
					t.Fatalf("%v, leave at %d: nothing can go on after round %d", sequence, position, s.center.Round())
				}
				s.released[leaver] = 0 // it trains no more, so its weights are its own affair
				expectAll(s, fmt.Sprintf("%v, leave at %d", sequence, position), rounds, m, pipelines,
					func(i int, r uint64) bool { return i != leaver || r <= last })
				for r, count := range s.counts {
					if expected := pipelines - btoi(r > last); count != expected {
						t.Fatalf("%v, leave at %d: round %d has count %d, expected %d", sequence, position, r, count, expected)
					}
				}
			})
		}
	})
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// TestJoinStartsFromTheCenter: a pipeline that joins in round r starts from x~ of the round before, in every interleaving.
func TestJoinStartsFromTheCenter(t *testing.T) {
	smallCases(t, 2, func(t *testing.T, m Method, pipelines int, rounds uint64) {
		if pipelines == 3 {
			return // with the one that joins there are as many as in the other tests
		}
		for joins := uint64(1); joins <= rounds; joins++ {
			build := func() *shell {
				s := newWildShell(t, m, pipelines, 4)
				actions, err := s.center.Join(pipelines, joins)
				if err != nil {
					t.Fatal(err)
				}
				s.execute(actions)
				return s
			}
			explore(build, rounds, pipelines+1, func(*shell, int) {}, func(s *shell, sequence []int) {
				if s.center.Round() != rounds {
					t.Fatalf("%v: nothing can go on after round %d", sequence, s.center.Round())
				}
				expectAll(s, fmt.Sprintf("%v, join in round %d", sequence, joins), rounds, m, pipelines+1,
					func(i int, r uint64) bool { return i < pipelines || r >= joins })
			})
		}
	})
}

// TestCenterScenarios runs testdata/center: the actions that each input causes.
func TestCenterScenarios(t *testing.T) {
	datadriven.Walk(t, "testdata/center", func(t *testing.T, path string) {
		var c *Center
		datadriven.RunTest(t, path, func(_ *testing.T, d *datadriven.TestData) string {
			if d.Cmd == "new" {
				c = newScenarioCenter(d)
				return centerStatus(c)
			}
			var out strings.Builder
			for line := range strings.Lines(d.Input) {
				fields := strings.Fields(line)
				actions, err := centerInput(c, fields)
				fmt.Fprintf(&out, "%s:", strings.Join(fields, " "))
				if err != nil {
					fmt.Fprintf(&out, " error: %v", err)
				}
				out.WriteString("\n")
				for _, a := range actions {
					fmt.Fprintf(&out, "  %s\n", a)
				}
			}
			return out.String() + centerStatus(c)
		})
	})
}

func newScenarioCenter(d *datadriven.TestData) *Center {
	timing, round, members := Before, 0, []int(nil)
	for _, arg := range d.CmdArgs {
		switch arg.Key {
		case "timing":
			if arg.Vals[0] == "after" {
				timing = After
			}
		case "round":
			round, _ = strconv.Atoi(arg.Vals[0])
		case "pipelines":
			for _, v := range arg.Vals {
				p, _ := strconv.Atoi(v)
				members = append(members, p)
			}
		}
	}
	return NewCenter(Needs{Timing: timing}, uint64(round), members...)
}

// centerInput runs one line: "update PIPELINE ROUND", "join PIPELINE ROUND", "leave PIPELINE" or "snapshot ROUND".
func centerInput(c *Center, fields []string) ([]Action, error) {
	var numbers [2]int
	for i, f := range fields[1:] {
		n, err := strconv.Atoi(f)
		if err != nil {
			return nil, err
		}
		numbers[i] = n
	}
	switch fields[0] {
	case "update":
		return c.Update(numbers[0], uint64(numbers[1]))
	case "join":
		return c.Join(numbers[0], uint64(numbers[1]))
	case "leave":
		return c.Leave(numbers[0])
	case "snapshot":
		return c.Snapshot(uint64(numbers[0]))
	}
	return nil, fmt.Errorf("unknown input %q", fields[0])
}

func centerStatus(c *Center) string {
	return fmt.Sprintf("round %d complete, members %v, earliest snapshot %d\n", c.Round(), c.Members(), c.EarliestSnapshot())
}

// String names the kind.
func (k ActionKind) String() string {
	names := [...]string{
		Pull: "pull", Capture: "capture", Release: "release", Merge: "merge", Advance: "advance", Snapshot: "snapshot", Admit: "admit",
	}
	if k == 0 || int(k) >= len(names) {
		return "invalid"
	}
	return names[k]
}

// String prints an action on one line.
func (a Action) String() string {
	switch a.Kind {
	case Advance, Snapshot:
		return fmt.Sprintf("%s round=%d count=%d", a.Kind, a.Round, a.Count)
	case Merge:
		if a.First {
			return fmt.Sprintf("merge pipeline=%d round=%d first", a.Pipeline, a.Round)
		}
	case Pull, Capture, Release, Admit:
	}
	return fmt.Sprintf("%s pipeline=%d round=%d", a.Kind, a.Pipeline, a.Round)
}
