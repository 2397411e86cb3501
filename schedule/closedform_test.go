package schedule

import (
	"slices"
	"testing"
)

// The closed forms of the papers, over all K <= 8 and M <= 16, where links and updates take no time. Sizes are counted in
// forwards; a half of a backward takes as long as a forward where a form says so (unit).

// wholeBackwards are the schedules of one stage a device and whole backwards.
var wholeBackwards = []string{"gpipe", "1f1b", "afp", "pipedream", "pipedream-2bw"}

// TestInFlightIsTheClosedForm, per device and counted on each of its stages, k from 0: M for gpipe; min(M, K-k) for 1f1b, pipedream and
// pipedream-2bw; min(M, 2(K-k)-1) for the published afp; min(M, K) for zb-h1; min(M, 2K-1) for zb-h2; for v chunks interleaved
// min(vM, 2(K-1-k) + (v-1)R + 1), where R = K if K divides M, and zb-v no more than 2 min(M, K), which is 1f1b's memory.
func TestInFlightIsTheClosedForm(t *testing.T) {
	closed := map[string]func(stages, m, k int) int{
		"gpipe":         func(_, m, _ int) int { return m },
		"1f1b":          func(stages, m, k int) int { return min(m, stages-k) },
		"afp":           func(stages, m, k int) int { return min(m, 2*(stages-k)-1) },
		"zb-h1":         func(stages, m, _ int) int { return min(m, stages) },
		"zb-h2":         func(stages, m, _ int) int { return min(m, 2*stages-1) },
		"pipedream":     func(stages, m, k int) int { return min(m, stages-k) },
		"pipedream-2bw": func(stages, m, k int) int { return min(m, stages-k) },
	}
	forSmall(func(stages, microBatches int) {
		for name, want := range closed {
			plan := mustGenerate(t, name, Request{Devices: stages, MicroBatches: microBatches})
			for k, inFlight := range InFlight(plan) {
				if inFlight != want(stages, microBatches, k) {
					t.Errorf("%s, K=%d, M=%d: stage %d has %d in flight; want %d", name, stages, microBatches, k, inFlight, want(stages, microBatches, k))
				}
			}
		}
		for chunks := 2; chunks <= 4; chunks++ {
			plan := mustGenerate(t, "interleaved", Request{Devices: stages, MicroBatches: microBatches, Chunks: chunks})
			rounds := max(1, microBatches/stages)
			round := (microBatches + rounds - 1) / rounds
			for k, inFlight := range InFlight(plan) {
				if want := min(chunks*microBatches, 2*(stages-1-k)+(chunks-1)*round+1); inFlight != want {
					t.Errorf("interleaved, K=%d, M=%d, v=%d: device %d has %d in flight; want %d", stages, microBatches, chunks, k, inFlight, want)
				}
			}
		}
		v := InFlight(mustGenerate(t, "zb-v", Request{Devices: stages, MicroBatches: microBatches}))
		if got, most := slices.Max(v), 2*min(microBatches, stages); got > most || microBatches >= 2*stages-1 && slices.Min(v) != most {
			t.Errorf("zb-v, K=%d, M=%d: devices have %v in flight; want at most %d, and that from 2K-1 micro-batches on", stages, microBatches, v, most)
		}
	})
}

// TestWarmupIsTheClosedForm: gpipe M, 1f1b K-k, afp 2(K-k)-1, interleaved 2(K-1-k) + (v-1)K + 1.
func TestWarmupIsTheClosedForm(t *testing.T) {
	forSmall(func(stages, microBatches int) {
		if microBatches%stages != 0 {
			return
		}
		for k := range stages {
			for _, c := range []struct {
				name         string
				chunks, want int
			}{
				{"gpipe", 1, microBatches},
				{"1f1b", 1, stages - k},
				{"afp", 1, 2*(stages-k) - 1},
				{"pipedream", 1, stages - k},
				{"interleaved", 2, 2*(stages-1-k) + stages + 1},
				{"interleaved", 3, 2*(stages-1-k) + 2*stages + 1},
			} {
				plan := mustGenerate(t, c.name, Request{Devices: stages, MicroBatches: microBatches, Chunks: c.chunks})
				if got, want := Warmup(plan)[k], min(c.want, c.chunks*microBatches); got != want {
					t.Errorf("%s of %d chunks, K=%d, M=%d: device %d warms up with %d; want %d", c.name, c.chunks, stages, microBatches, k, got, want)
				}
			}
		}
	})
}

// TestBubbleIsTheClosedForm: (K-1)/(M+K-1) for every schedule of whole backwards and whole devices where links cost nothing, those
// that update inside of the batch included: as they do not drain but at its end, it tends to 0 as M grows.
func TestBubbleIsTheClosedForm(t *testing.T) {
	for _, name := range wholeBackwards {
		forSmall(func(stages, microBatches int) {
			for _, backward := range []float64{1, 2, 1.31} {
				costs := Uniform(stages, 1, backward, 0)
				for _, known := range []*Costs{nil, &costs} {
					plan := mustGenerate(t, name, Request{Devices: stages, MicroBatches: microBatches, Costs: known})
					got := mustSimulate(t, plan, costs).Bubble
					if want := float64(stages-1) / float64(microBatches+stages-1); !near(got, want) {
						t.Errorf("%s, K=%d, M=%d, B=%v: bubble %v; want %v", name, stages, microBatches, backward, got, want)
					}
				}
			}
		})
	}
}

// TestInterleavingDividesTheBubble: (K-1)/(vM+K-1) for any M >= K, a multiple of K or not.
func TestInterleavingDividesTheBubble(t *testing.T) {
	forSmall(func(stages, microBatches int) {
		if microBatches < stages {
			return
		}
		for chunks := 2; chunks <= 4; chunks++ {
			for _, backward := range []float64{1, 2, 3.5} {
				costs := Uniform(stages*chunks, 1, backward, 0)
				plan := mustGenerate(t, "interleaved", Request{Devices: stages, MicroBatches: microBatches, Chunks: chunks})
				got := mustSimulate(t, plan, costs).Bubble
				if want := float64(stages-1) / float64(chunks*microBatches+stages-1); !near(got, want) {
					t.Errorf("interleaved, K=%d, M=%d, v=%d, B=%v: bubble %v; want %v", stages, microBatches, chunks, backward, got, want)
				}
			}
		}
	})
}

// idleOf is the time, in forwards, in which the busiest device waits: in the whole batch, and from its own first op to its last.
func idleOf(t *testing.T, plan Plan) (batch, inside float64) {
	t.Helper()
	makespan := 0.0
	for d, spans := range timesOf(t, plan, unit) {
		busy := 0.0
		for _, op := range plan[d] {
			busy += unit(op.Kind)
		}
		first, last := spans[0].Start, spans[len(spans)-1].End
		makespan = max(makespan, last)
		inside = max(inside, last-first-busy)
		batch = makespan - busy // alike on all devices
	}
	return batch, inside
}

// TestZBH1HasAThirdOf1F1BsBubble: K-1 against 3(K-1) forwards, once M >= K; each micro-batch that is missing costs one more, and it
// is never above two thirds.
func TestZBH1HasAThirdOf1F1BsBubble(t *testing.T) {
	forSmall(func(stages, microBatches int) {
		request := Request{Devices: stages, MicroBatches: microBatches}
		whole, _ := idleOf(t, mustGenerate(t, "1f1b", request))
		if whole != float64(3*(stages-1)) {
			t.Errorf("1f1b, K=%d, M=%d: %v idle; want %d", stages, microBatches, whole, 3*(stages-1))
		}
		got, _ := idleOf(t, mustGenerate(t, "zb-h1", request))
		if want := max(stages-1, 2*(stages-1)-(microBatches-1)); got != float64(want) {
			t.Errorf("zb-h1, K=%d, M=%d: %v idle; want %d, 1f1b has %v", stages, microBatches, got, want, whole)
		}
	})
}

// TestNoDeviceOfZBH2AndZBVWaits from its first op to its last, once M >= 2K-1: the batch is longer than a device's work just by the
// K-1 forwards (of a stage) after which the last device starts. With fewer micro-batches it is shorter than 1f1b all the same.
func TestNoDeviceOfZBH2AndZBVWaits(t *testing.T) {
	forSmall(func(stages, microBatches int) {
		for _, c := range []struct {
			name   string
			chunks int
		}{{"zb-h2", 1}, {"zb-v", 2}} {
			batch, inside := idleOf(t, mustGenerate(t, c.name, Request{Devices: stages, MicroBatches: microBatches}))
			if microBatches >= 2*stages-1 && (inside != 0 || batch != float64(stages-1)) {
				t.Errorf("%s, K=%d, M=%d: a device waits %v, the batch has %v idle; want 0 and %d", c.name, stages, microBatches, inside, batch, stages-1)
			}
			if most := float64(2 * c.chunks * (stages - 1)); batch > most {
				t.Errorf("%s, K=%d, M=%d: %v idle; want at most %v, two thirds of 1f1b's", c.name, stages, microBatches, batch, most)
			}
		}
	})
}

// TestVersionsAndDelayAreTheClosedForms. pipedream: stage k of K keeps K-k versions and its gradients are K-1-k updates late; a batch
// of M micro-batches, w = min(M, K-k) of them in the warm-up, gets to see min(w, M-w+2) and w-1 of that. pipedream-2bw: two versions and
// one update, unless the batch is one group. All others: one version, no delay.
func TestVersionsAndDelayAreTheClosedForms(t *testing.T) {
	forSmall(func(stages, microBatches int) {
		for _, name := range Names() {
			plan := mustGenerate(t, name, Request{Devices: stages, MicroBatches: microBatches})
			versions, delays := VersionsByStage(plan), GradientDelay(plan)
			for k := range versions {
				wantVersions, wantDelay := 1, 0
				switch name {
				case "pipedream":
					w := min(microBatches, stages-k)
					wantVersions, wantDelay = min(w, microBatches-w+2), w-1
				case "pipedream-2bw":
					if plan.Updates() > 1 {
						wantVersions, wantDelay = 2, 1
					}
				}
				if versions[k] != wantVersions || delays[k] != wantDelay {
					t.Errorf("%s, K=%d, M=%d: stage %d keeps %d versions, gradients %d updates late; want %d, %d",
						name, stages, microBatches, k, versions[k], delays[k], wantVersions, wantDelay)
				}
			}
		}
	})
}

// TestUpdates: one a micro-batch for pipedream; for pipedream-2bw one a group of the smallest divisor of M that is at least K; none for
// all others.
func TestUpdates(t *testing.T) {
	forSmall(func(stages, microBatches int) {
		for _, name := range Names() {
			want := 0
			switch name {
			case "pipedream":
				want = microBatches
			case "pipedream-2bw":
				want = 1
				for n := microBatches; n > 1; n-- {
					if microBatches%n == 0 && microBatches/n >= stages {
						want = n
						break
					}
				}
			}
			if got := mustGenerate(t, name, Request{Devices: stages, MicroBatches: microBatches}).Updates(); got != want {
				t.Errorf("%s, K=%d, M=%d: %d updates; want %d", name, stages, microBatches, got, want)
			}
		}
	})
}
